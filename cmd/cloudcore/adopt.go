package main

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/edgecore-io/edgecore/cloud/adopt"
	"github.com/edgecore-io/edgecore/cloud/kubeapi"
	"github.com/edgecore-io/edgecore/deploy/cloudcore"
)

// The exit statuses of adopt besides 0 and 1.
const (
	exitRefused = 3
	exitNothing = 4
)

// exitError is an error with the exit status of the program.
type exitError struct {
	error
	code int
}

func (e *exitError) Unwrap() error { return e.error }

// adoptOptions are the flags of adopt's commands.
type adoptOptions struct {
	*globalOptions
	kubeConfig string
	image      string
	wait       time.Duration
	skipDryRun bool
	manifests  fs.FS
}

func newAdoptCommand(opts *globalOptions) *cobra.Command {
	return (&adoptOptions{globalOptions: opts, manifests: cloudcore.Files()}).command()
}

func (o *adoptOptions) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "Migrate a cluster from KubeEdge's cloudcore, or back",
		Long: `Replace a cloudcore that KubeEdge's chart or keadm has installed in the namespace kubeedge. Devices keep their
certificates, and reconnect to the same addresses and ports by themselves.

adopt plan prints what it has found, what will be written, replaced and deleted, what stays, and what it refuses. adopt
apply prints the same, saves what will be deleted or replaced in the secret cloudcore-adopt, does it, and waits until
cloudcore is ready. adopt undo restores what was saved, and removes what apply has created. If apply or undo is
interrupted, run it again to finish.

The CA that devices trust (the secret casecret), the namespace, and the CRDs with their objects are never deleted.

Run it where kubectl works, as a cluster admin: not in a pod of cloudcore, which may not change these objects.

Exit status: 0 if the plan can be carried out, or was; 1 for an error; 3 if the plan is refused, with reasons and remedies;
4 if there is no cloudcore of KubeEdge's.`,
		Example: `  cloudcore adopt plan --image REGISTRY/cloudcore:TAG
  cloudcore adopt apply --image REGISTRY/cloudcore:TAG
  cloudcore adopt undo`,
	}
	cmd.PersistentFlags().StringVar(&o.kubeConfig, "kube-config", "",
		"the kubeconfig `file` to reach kube-apiserver with")
	plan := &cobra.Command{
		Use:   "plan --image IMAGE",
		Short: "Print what apply would do, and change nothing",
		Long: `Print what apply would do, and change nothing: requests are tried with dry runs. For the exit status, see
cloudcore adopt --help.`,
		Example: "  cloudcore adopt plan --image REGISTRY/cloudcore:TAG",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd, (*adopt.Adoption).Plan) },
	}
	apply := &cobra.Command{
		Use:   "apply --image IMAGE",
		Short: "Replace KubeEdge's cloudcore",
		Long: `Replace KubeEdge's cloudcore, and wait until edgecore's is ready. Between the two, devices run on without a cloud.
If it fails or is interrupted, run it again to go on, or run cloudcore adopt undo.`,
		Example: "  cloudcore adopt apply --image REGISTRY/cloudcore:TAG",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd, (*adopt.Adoption).Apply) },
	}
	for _, c := range []*cobra.Command{plan, apply} {
		c.Flags().StringVar(&o.image, "image", "", "the `image` of edgecore's cloudcore")
	}
	undo := &cobra.Command{
		Use:   "undo",
		Short: "Go back to KubeEdge's cloudcore",
		Long: `Restore what apply has deleted or replaced, and remove what it has created. It waits until KubeEdge's cloudcore is ready.
If it is interrupted, run it again. Without an adoption it does nothing.`,
		Example: "  cloudcore adopt undo",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd, (*adopt.Adoption).Undo) },
	}
	for _, c := range []*cobra.Command{apply, undo} {
		c.Flags().BoolVar(&o.skipDryRun, "skip-dry-run", false,
			"do not try all requests with kube-apiserver before the first change")
		c.Flags().DurationVar(&o.wait, "wait", 5*time.Minute, "how `long` pods may take to stop or to become ready")
	}
	cmd.AddCommand(plan, apply, undo)
	return cmd
}

func (o *adoptOptions) run(cmd *cobra.Command, do func(*adopt.Adoption, context.Context) error) error {
	rc, err := kubeapi.Find(o.kubeConfig, o.Config, rest.InClusterConfig)
	if err != nil {
		return err
	}
	a, err := adopt.New(rc, adopt.Options{
		Manifests: o.manifests, Image: o.image, Wait: o.wait, Out: cmd.OutOrStdout(), SkipDryRun: o.skipDryRun,
	})
	if err != nil {
		return err
	}
	err = do(a, cmd.Context())
	switch {
	case errors.Is(err, adopt.ErrRefused):
		return &exitError{err, exitRefused}
	case errors.Is(err, adopt.ErrNothing):
		return &exitError{err, exitNothing}
	}
	return err
}
