package images

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pull is one pull under way, and those who wait for it.
type pull struct {
	cancel  context.CancelFunc
	done    chan struct{}
	waiters int
	// set when done is closed
	ref  string
	took time.Duration
	err  error
}

// share joins a pull that is under way, or begins one, and waits for its end. It returns how long the
// pull itself took.
func (p *Puller) share(ctx context.Context, spec *runtimeapi.ImageSpec, creds []credential, sandbox *runtimeapi.PodSandboxConfig) (string, time.Duration, error) {
	key, err := pullKey(spec, creds)
	if err != nil {
		return "", 0, err
	}
	p.mu.Lock()
	job := p.pulls[key]
	if job == nil {
		// It belongs to all who wait, and so outlives the one who began it.
		pullCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		job = &pull{cancel: cancel, done: make(chan struct{})}
		p.pulls[key] = job
		go p.run(pullCtx, key, job, spec, creds, sandbox)
	}
	job.waiters++
	p.mu.Unlock()

	select {
	case <-job.done:
		return job.ref, job.took, job.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	job.waiters--
	last := job.waiters == 0
	if last {
		delete(p.pulls, key)
	}
	p.mu.Unlock()
	if last {
		job.cancel()
		<-job.done // the goroutine has an end, and somebody who saw it
	}
	return "", 0, ctx.Err()
}

// run pulls, within the bounds of the node.
func (p *Puller) run(ctx context.Context, key string, job *pull, spec *runtimeapi.ImageSpec, creds []credential, sandbox *runtimeapi.PodSandboxConfig) {
	defer job.cancel()
	defer close(job.done)
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.pulls[key] == job {
			delete(p.pulls, key)
		}
	}()
	if p.slots != nil {
		select {
		case p.slots <- struct{}{}:
			defer func() { <-p.slots }()
		case <-ctx.Done():
			job.err = ctx.Err()
			return
		}
	}
	if p.limit != nil {
		if err := p.limit.Wait(ctx); err != nil {
			job.err = err
			return
		}
	}
	began := time.Now()
	job.ref, job.err = p.pull(ctx, spec, creds, sandbox)
	job.took = time.Since(began)
}

// pull tries the credentials one after another, at last none.
func (p *Puller) pull(ctx context.Context, spec *runtimeapi.ImageSpec, creds []credential, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	var errs []error
	for i := range creds {
		ref, err := p.pullOnce(ctx, spec, creds[i].auth(), sandbox)
		if err == nil || ctx.Err() != nil {
			return ref, err
		}
		errs = append(errs, err)
	}
	if len(creds) > 0 {
		return "", errors.Join(errs...)
	}
	return p.pullOnce(ctx, spec, nil, sandbox)
}

func (p *Puller) pullOnce(ctx context.Context, spec *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	resp, err := p.client.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec, Auth: auth, SandboxConfig: sandbox})
	if err != nil {
		return "", err
	}
	return resp.ImageRef, nil
}

// pullKey tells pulls apart: the image, and with whose rights.
func pullKey(spec *runtimeapi.ImageSpec, creds []credential) (string, error) {
	key, err := json.Marshal(struct {
		Image string
		Creds []credential
	}{spec.Image, creds})
	return string(key), err
}
