package images

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// request is what a waiter wants.
type request struct {
	spec    *runtimeapi.ImageSpec
	creds   []credential
	sandbox *runtimeapi.PodSandboxConfig
	// slow is called now and then with the progress of a slow pull; it may be nil.
	slow func(Progress)
}

// pull is one pull under way, and those who wait for it.
type pull struct {
	cancel  context.CancelFunc
	done    chan struct{}
	waiters map[*request]bool
	// set when done is closed
	ref      string
	used     int // the credential that let it in; -1 is none
	progress Progress
	err      error
}

// share joins a pull that is under way, or begins one, and waits for its end. It returns which of the credentials let
// it in (-1: none), how far the pull was seen to come, and how long it took itself.
func (p *Puller) share(ctx context.Context, want request) (string, int, Progress, error) {
	key, err := pullKey(want.spec, want.creds)
	if err != nil {
		return "", -1, Progress{}, err
	}
	p.mu.Lock()
	job := p.pulls[key]
	if job == nil {
		// It belongs to all who wait, and so outlives the one who began it.
		pullCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		job = &pull{cancel: cancel, done: make(chan struct{}), waiters: map[*request]bool{}}
		p.pulls[key] = job
		go p.run(pullCtx, key, job, want)
	}
	job.waiters[&want] = true
	p.mu.Unlock()

	select {
	case <-job.done:
		return job.ref, job.used, job.progress, job.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	delete(job.waiters, &want)
	last := len(job.waiters) == 0
	if last {
		delete(p.pulls, key)
	}
	p.mu.Unlock()
	if last {
		job.cancel()
		<-job.done // wait for the goroutine
	}
	return "", -1, Progress{}, ctx.Err()
}

// reportProgress tells those who wait how far their pull is.
func (p *Puller) reportProgress(job *pull, done Progress) {
	p.mu.Lock()
	var waiting []func(Progress)
	for w := range job.waiters {
		if w.slow != nil {
			waiting = append(waiting, w.slow)
		}
	}
	p.mu.Unlock()
	for _, slow := range waiting {
		slow(done)
	}
}

// run pulls, within the bounds of the node.
func (p *Puller) run(ctx context.Context, key string, job *pull, want request) {
	defer job.cancel()
	defer close(job.done)
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.pulls[key] == job {
			delete(p.pulls, key)
		}
	}()
	if slots := p.slotsNow(); slots != nil {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			job.err = ctx.Err()
			return
		}
	}
	if err := p.limit.Wait(ctx); err != nil {
		job.err = err
		return
	}
	p.pullWatched(ctx, job, want)
}

// pullWatched pulls, with the deadline for progress.
func (p *Puller) pullWatched(ctx context.Context, job *pull, want request) {
	began := time.Now()
	ctx, giveUp := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	if p.opts.Meter != nil {
		watching.Go(func() {
			job.progress = p.watch(ctx, want.spec.Image, giveUp, func(done Progress) { p.reportProgress(job, done) })
		})
	}
	job.ref, job.used, job.err = p.pull(ctx, want.spec, want.creds, want.sandbox)
	stalled, gaveUp := errors.AsType[*StalledError](context.Cause(ctx))
	giveUp(nil)
	watching.Wait()
	if gaveUp && job.err != nil {
		job.err = stalled
	}
	job.progress.Took = time.Since(began)
}

// pull tries the credentials one after another; without any it goes without. It returns which one let it in, -1 for
// none.
func (p *Puller) pull(
	ctx context.Context, spec *runtimeapi.ImageSpec, creds []credential, sandbox *runtimeapi.PodSandboxConfig,
) (string, int, error) {
	var errs []error
	for i := range creds {
		ref, err := p.pullOnce(ctx, spec, creds[i].auth(), sandbox)
		if err == nil || ctx.Err() != nil {
			return ref, i, err
		}
		errs = append(errs, err)
	}
	if len(creds) > 0 {
		return "", -1, errors.Join(errs...)
	}
	ref, err := p.pullOnce(ctx, spec, nil, sandbox)
	return ref, -1, err
}

func (p *Puller) pullOnce(
	ctx context.Context, spec *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig,
) (string, error) {
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
