package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/deploy/systemd"
	"github.com/edgecore-io/edgecore/edged/agentconfig"
	"github.com/edgecore-io/edgecore/edgehub/join"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

// joinOptions are the flags of join.
type joinOptions struct {
	*globalOptions
	join.Request
	server           string
	token, tokenFile string
	takeName         bool
	noStart          bool
	preRun, postRun  string
	scripts          joinScripts
	service          *systemd.Service // nil is the real one
	// runtimeFor says why no pod could start with a configuration.
	runtimeFor func(context.Context, *v1alpha2.EdgeCore) error
}

func newJoinCommand(opts *globalOptions) *cobra.Command {
	return (&joinOptions{globalOptions: opts, runtimeFor: agentconfig.RuntimeFor}).command()
}

func (o *joinOptions) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "join --cloudcore-ipport HOST:PORT --token-file FILE",
		Short: "Join this device to a cloud, or renew its certificate",
		Long: `Join this device to a cloud: edgecore's cloudcore, or KubeEdge's cloudcore v1.12 or newer.

join fetches the cloud's CA and verifies it with the token, requests a certificate for this node, and writes the
certificate and the configuration. On a device with systemd it then starts the agent, now and at every boot. Nothing is
written until the cloud accepts the request, and nothing is downloaded. A container runtime that does not answer is a
warning: the device joins, and its pods start once the runtime is there.

Get a token in the cloud with ` + "`cloudcore gettoken` or `keadm gettoken`" + `; it is valid for a day. A token of
` + "`cloudcore gettoken --node NAME`" +
			` is valid for that node only; edgecore's cloudcore requires one for a node that
exists already. Other users of this device can see a token on the command line; pass it with --token-file FILE, or
--token-file - for standard input.

You can join again at any time: pods keep running, and the store and the keys that you set in the configuration stay. A
certificate of the same cloud that is not near expiry is kept. A certificate that is expired, near expiry, damaged, or
revoked before the token was made is replaced, so a device that was offline for too long recovers by joining again. The name
of another node is refused, unless the token is for that node or --take-name says that this device replaces it. Without a
token, join only writes the configuration and sets up the service, for a device that has a certificate already.`,
		Example: `  edgecore join --cloudcore-ipport 192.0.2.1:10000 --token-file token.txt
  ssh cloud cloudcore gettoken | edgecore join -e cloud.example:10000 --token-file -
  edgecore join -e 192.0.2.1:10000 -t TOKEN -i edge1 --labels zone=hall-2,power=solar
  edgecore join -e 192.0.2.1:10000 -t TOKEN --set modules.edged.nodeIP=192.0.2.7`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.findScripts(cmd)
			return o.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), ignoredFlags(cmd))
		},
	}
	o.addFlags(cmd)
	return cmd
}

func (o *joinOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&o.server, "cloudcore-ipport", "e", "",
		"the cloud's `address`, HOST:PORT; the port is 10000 if it is missing (required)")
	f.StringVarP(&o.token, "token", "t", "", "the `token` of the cloud")
	f.StringVar(&o.tokenFile, "token-file", "", "the `file` with the token; - is standard input")
	f.StringVarP(&o.Node, "edgenode-name", "i", "",
		"the node's `name`; without it that of the configuration, of the token, or of the host")
	f.IntVarP(&o.CertPort, "certport", "s", 10002, "the cloud's `port` for certificates")
	f.StringVar(&o.CertPath, "cert-path", "",
		"the `folder` for CA, certificate and key (without it: where the configuration says)")
	f.StringVar(&o.CertPath, "certPath", "", "keadm's name of --cert-path")
	f.StringVar(&o.CgroupDriver, "cgroupdriver", "",
		"the cgroup `driver`, cgroupfs or systemd: the same as the container runtime's")
	f.StringVarP(&o.Runtime, "remote-runtime-endpoint", "p", "", "the container runtime's `socket`, such as "+
		v1alpha2.DefaultCRISocket)
	f.StringSliceVarP(&o.Labels, "labels", "l", nil, "`labels` of the node, KEY=VALUE,KEY=VALUE")
	f.StringVar(&o.Protocol, "hub-protocol", "",
		"`protocol` of the link: websocket, or quic (edgecore's own cloudcore only)")
	f.StringArrayVar(&o.Sets, "set", nil,
		"`keys` of the configuration, such as modules.edged.nodeIP=192.0.2.7; may be repeated")
	f.BoolVar(&o.takeName, "take-name", false,
		"replace the node that has this name in the cloud; not needed with a token for that node")
	f.BoolVar(&o.noStart, "no-start", false, "do not set up or start the service")
	f.StringVar(&o.NodeIP, "edgenode-ip", "", "the node's `address` (without it, that of the default route)")
	f.StringVar(&o.Interface, "interfacename", "", "the network `interface` that has the node's address")
	f.IntVar(&o.QUICPort, "quicport", 0, "the cloud's `port` for the link over QUIC; 10001 if it is missing")
	f.IntVar(&o.TunnelPort, "tunnelport", 0, "the `port` of KubeEdge's cloudcore for streams (modules.edgeStream)")
	f.BoolVar(&o.EdgeTaint, "with-edge-taint", false, "taint a new node with node-role.kubernetes.io/edge:NoSchedule")
	f.StringVar(&o.preRun, "pre-run", "", "a bash `script` to run before the join; if it fails, nothing is done")
	f.StringVar(&o.postRun, "post-run", "", "a bash `script` to run after the join")
	for name, flag := range keadmFlags() {
		if flag.isBool {
			f.Bool(name, false, "")
		} else {
			f.StringP(name, flag.short, "", "")
		}
		hide(cmd, name)
	}
	hide(cmd, "certPath")
}

func hide(cmd *cobra.Command, name string) {
	if err := cmd.Flags().MarkHidden(name); err != nil {
		panic(err) // the flag was added above
	}
}

type keadmFlag struct {
	isBool     bool
	short, why string
}

// keadmFlags are those of `keadm join`, and of KubeSphere's, that do nothing here, and why.
func keadmFlags() map[string]keadmFlag {
	const nothingDownloaded = "nothing is downloaded: edgecore is the program that you are running"
	return map[string]keadmFlag{
		"kubeedge-version": {why: nothingDownloaded},
		"tarballpath":      {why: nothingDownloaded},
		"image-repository": {why: nothingDownloaded},
		"region":           {why: nothingDownloaded},
		"runtimetype": {
			short: "r", why: "every container runtime is used through CRI; --remote-runtime-endpoint names it",
		},
		"with-mqtt": {
			isBool: true, why: "no MQTT broker is installed; the agent has one of its own (modules.eventBus)",
		},
		"domainname": {why: "the cloud's name is the one in --cloudcore-ipport"},
	}
}

// ignoredFlags returns a warning for each flag that was given and does nothing.
func ignoredFlags(cmd *cobra.Command) []string {
	var list []string
	for name, flag := range keadmFlags() {
		if cmd.Flags().Changed(name) {
			list = append(list, "--"+name+" does nothing: "+flag.why)
		}
	}
	slices.Sort(list)
	return list
}

// joinScripts are those to run before and after a join; nil: none.
type joinScripts struct{ pre, post *join.Script }

// findScripts takes the scripts from the flags: one that is given without a file is an error later, not left out.
func (o *joinOptions) findScripts(cmd *cobra.Command) {
	o.scripts = joinScripts{}
	if cmd.Flags().Changed("pre-run") {
		o.scripts.pre = &join.Script{Flag: "--pre-run", File: o.preRun}
	}
	if cmd.Flags().Changed("post-run") {
		o.scripts.post = &join.Script{Flag: "--post-run", File: o.postRun}
	}
}

func (s joinScripts) check() error {
	for _, script := range []*join.Script{s.pre, s.post} {
		if script == nil {
			continue
		}
		if err := script.Check(); err != nil {
			return err
		}
	}
	return nil
}

// run does the steps in order; all that can be checked is checked before the first that changes something.
func (o *joinOptions) run(ctx context.Context, in io.Reader, out, errs io.Writer, warnings []string) error {
	for _, path := range []*string{&o.Config, &o.CertPath} { // the service has another working folder
		if *path == "" {
			continue
		}
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	if err := o.scripts.check(); err != nil {
		return err
	}
	text, token, err := join.ReadToken(in, o.token, o.tokenFile)
	if err != nil {
		return err
	}
	p, err := o.Plan(o.server, o.Config, configfile.Fresh("/", o.Config), token)
	if err != nil {
		return err
	}
	if o.scripts.pre != nil {
		if err := o.scripts.pre.Run(ctx, out, errs); err != nil {
			return fmt.Errorf("nothing is done, because %w", err)
		}
		// It may have changed what is planned, such as the host's name.
		if p, err = o.Plan(o.server, o.Config, configfile.Fresh("/", o.Config), token); err != nil {
			return err
		}
	}
	for _, w := range slices.Concat(warnings, p.Warnings, o.runtimeWarning(ctx, p.Config)) {
		fmt.Fprintln(errs, "warning:", w)
	}
	did, err := join.Certificate(ctx, p.Config, token, text, o.takeName)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, did)
	if did, err = p.Write(o.Config); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	fmt.Fprintln(out, did)
	if err := o.startService(ctx, out, p.Config); err != nil {
		return err
	}
	if o.scripts.post != nil {
		if err := o.scripts.post.Run(ctx, out, errs); err != nil {
			return fmt.Errorf("the device has joined, but %w", err)
		}
	}
	return nil
}

// runtimeWarning returns a warning if no pod could start on this device. The agent does not go back to the
// configuration before a join, since its certificate may be gone, so the user of the command has to know.
func (o *joinOptions) runtimeWarning(ctx context.Context, cfg *v1alpha2.EdgeCore) []string {
	if !cfg.Modules.Edged.Enable {
		return nil
	}
	if err := o.runtimeFor(ctx, cfg); err != nil {
		return []string{"no pod can start until this is corrected: " + err.Error()}
	}
	return nil
}

// startService starts the agent's service, or prints how to do that.
func (o *joinOptions) startService(ctx context.Context, out io.Writer, cfg *v1alpha2.EdgeCore) error {
	s := o.service
	if s == nil {
		var err error
		if s, err = systemd.NewService(); err != nil {
			return err
		}
	}
	config := o.Config
	if o.noStart || !s.Present() {
		why := "systemd does not run here"
		if o.noStart {
			why = "The service is left alone"
		}
		fmt.Fprintf(out, "%s; this runs the agent:\n  %s --config %s\n", why, s.Program, config)
		return nil
	}
	did, err := s.Install(config)
	if err != nil {
		return fmt.Errorf("service: %w", err)
	}
	fmt.Fprintln(out, did)
	if err := s.Start(ctx); err != nil {
		return fmt.Errorf("the device has joined, but the agent is not started: %w", err)
	}
	fmt.Fprintf(out, "The agent runs; check it with `edgecore status`, and in the cloud with: kubectl get node %s\n",
		cfg.Modules.Edged.HostnameOverride)
	return nil
}
