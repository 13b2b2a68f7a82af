// Package adopt replaces a cloudcore that KubeEdge's chart or keadm has installed in a cluster by edgecore's, and can
// undo that.
//
// It owns what is read of KubeEdge's objects, the decisions that follow from them (Decide and its parts are pure
// functions), and the order of the steps with their journal. It writes edgecore's manifests with the addresses, ports
// and placement of KubeEdge's objects.
//
// It promises:
//
//   - Nothing is changed before everything that can be checked was checked, and before all that will be deleted or
//     replaced was saved: in the Secret cloudcore-adopt of the namespace kubeedge, which Undo restores and removes.
//   - What devices trust stays: the Secret casecret, the namespace, and the CRDs with their objects are never deleted.
//   - Each step may be repeated. An Apply or Undo that was killed is finished by the same call, and ends as if it had
//     not been. After that, a call changes nothing.
//   - Objects that are neither KubeEdge's cloudcore's nor replaced by an object of edgecore's are not touched.
package adopt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"k8s.io/client-go/rest"
)

// Namespace has cloudcore, KubeEdge's and edgecore's.
const Namespace = "kubeedge"

// name is the name of cloudcore's objects: the Deployment, Service and ConfigMap, its ServiceAccount and roles.
const name = "cloudcore"

// Options say how a cloud is to be adopted.
type Options struct {
	// Manifests are deploy/cloudcore.
	Manifests fs.FS
	// Image is the image of edgecore's cloudcore.
	Image string
	// SkipDryRun leaves out to try all requests before the first change.
	SkipDryRun bool
	// Wait is how long cloudcore may take to become ready.
	Wait time.Duration
	// Out receives the plan, and a line for each step.
	Out io.Writer
}

var (
	// ErrRefused says that the plan cannot be carried out; the plan names the reasons.
	ErrRefused = errors.New("refused")
	// ErrNothing says that the cluster has no cloudcore of KubeEdge's.
	ErrNothing = errors.New("there is no cloudcore of KubeEdge's to adopt")
)

// Adoption replaces the cloudcore of one cluster.
type Adoption struct {
	Options
	api *api
}

// New makes an Adoption of the cluster that rc leads to; nothing is read yet.
func New(rc *rest.Config, o Options) (*Adoption, error) {
	api, err := newAPI(rc)
	if err != nil {
		return nil, err
	}
	return &Adoption{Options: o, api: api}, nil
}

func (a *Adoption) printLine(format string, args ...any) { fmt.Fprintf(a.Out, format+"\n", args...) }

// Plan prints what Apply would do. The error is ErrRefused or ErrNothing where it would do nothing.
func (a *Adoption) Plan(ctx context.Context) error {
	_, _, err := a.plan(ctx, false)
	return err
}

// plan makes and prints the plan, and checks that it may be carried out. p is nil if the cluster was adopted already:
// then repair says whether to write objects that have changed since. j is not running before anything is changed.
func (a *Adoption) plan(ctx context.Context, repair bool) (p *Plan, j *journal, err error) {
	if j, err = a.loadJournal(ctx); err != nil {
		return nil, nil, err
	}
	if j != nil && j.Phase == applied {
		return nil, j, a.checkDrift(ctx, j, repair)
	}
	if err := a.proceed(j); err != nil {
		return nil, nil, err
	}
	if p, err = a.makePlan(ctx, j); err != nil {
		return nil, nil, err
	}
	p.Print(a.Out)
	return p, j, j.refusal(a.permit(ctx, p, j))
}

// permit returns why a plan is refused. Before anything is changed, it also tries the steps with dry runs.
func (a *Adoption) permit(ctx context.Context, p *Plan, j *journal) error {
	if err := p.Err(); err != nil || j.running() || a.SkipDryRun {
		return err
	}
	return (&rehearsal{Adoption: a}).apply(ctx, p)
}

// refusal adds to a refusal what was changed before it. j may be nil.
func (j *journal) refusal(err error) error {
	switch {
	case !errors.Is(err, ErrRefused):
		return err
	case !j.running():
		return fmt.Errorf("%w; nothing was changed", err)
	}
	return fmt.Errorf("%w; what was started at %s is not finished. Remove the reasons and run `cloudcore adopt apply` "+
		"again, or go back with `cloudcore adopt undo`", err, j.At.Format(time.RFC3339))
}

// proceed says what a plan or apply goes on with. It is an error if it may not.
func (a *Adoption) proceed(j *journal) error {
	switch {
	case !j.running():
		return nil
	case j.Phase == undoing:
		return errors.New("an undo was interrupted: run `cloudcore adopt undo` to finish it")
	default:
		a.printLine("Continuing what was started at %s.", j.At.Format(time.RFC3339))
		return nil
	}
}

// makePlan reads the cluster and makes the plan. What the journal has saved counts in place of what is there now.
func (a *Adoption) makePlan(ctx context.Context, j *journal) (*Plan, error) {
	if j.running() && a.Image == "" {
		a.Image = j.Image
	}
	found, err := a.read(ctx, j)
	if err != nil {
		return nil, err
	}
	p := Decide(found, a.Image)
	if p.Nothing {
		return p, nil
	}
	ours, err := render(a.Manifests, p)
	if err != nil {
		return nil, fmt.Errorf("manifests: %w", err)
	}
	for _, o := range ours {
		ref := refOf(o)
		known, err := a.api.known(ref)
		if err != nil {
			return nil, err
		}
		old, err := a.original(ctx, j, ref)
		if err != nil {
			return nil, err
		}
		p.add(o, old, known)
		switch ref.Kind {
		case crdKind:
			err = a.checkStored(ctx, p, o)
		case "Service":
			err = a.warnForeign(ctx, p, o)
		}
		if err != nil {
			return nil, err
		}
	}
	p.decideUnknownPolicies()
	return p, nil
}
