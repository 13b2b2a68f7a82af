package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/node/preflight"
	"github.com/edgecore-io/edgecore/edged/pods/shutdown"
	"github.com/edgecore-io/edgecore/edged/podstate/source"
	"github.com/edgecore-io/edgecore/edged/serve/servingcert"
	"github.com/edgecore-io/edgecore/edgehub/nodecert"
	"github.com/edgecore-io/edgecore/local/adopt"
	"github.com/edgecore-io/edgecore/metaserver/devicecert"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// Roots of the pods' folders in KubeEdge's versions: since 1.20, and before.
const newRoot, oldRoot = "/var/lib/kubelet", "/var/lib/edged"

// callTimeout bounds a question to the runtime.
const callTimeout = 30 * time.Second

// Plan is what a takeover would do, and what it would do it with.
type Plan struct {
	Config   *adopt.Config
	Stored   *adopt.Stored
	Findings *adopt.Findings
	// Errors stand in the way; Warnings are worth knowing.
	Errors, Warnings []string

	before  *v1alpha2.EdgeCore
	unit    unit
	certs   []certFile
	running []string // ids of the containers that are to run on
}

// certFile is a file to be written.
type certFile struct {
	to   string
	data []byte
}

// Look makes a plan. It changes nothing on the device.
func (t *Migration) Look(ctx context.Context) (*Plan, error) {
	text, err := os.ReadFile(t.From)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there is no configuration of KubeEdge's edgecore: %w; --from names another file", err)
	}
	if err != nil {
		return nil, err
	}
	p := &Plan{}
	if p.before, err = adopt.Before(text); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", t.From, err)
	}
	if sameFile(t.From, t.Config) || samePath(p.before.Database.DataSource, t.Store) {
		return nil,
			fmt.Errorf("%s and %s are KubeEdge's own, which stay as they are: --config and --store name others for "+
				"edgecore", t.Config, t.Store)
	}
	if p.unit, err = t.Service.findUnit(ctx); err != nil {
		return nil, fmt.Errorf("KubeEdge's unit: %w", err)
	}
	if err := t.mayBegin(p); err != nil {
		return nil, err
	}
	if _, err := os.Stat(t.dropIns()); err == nil && p.unit.path != "" {
		p.Warnings = append(p.Warnings,
			fmt.Sprintf("the settings in %s are KubeEdge's, and are moved aside with its unit; `systemctl edit "+
				"edgecore` makes some for edgecore", t.dropIns()))
	}
	rows, note, err := readStore(ctx, p.before.Database.DataSource)
	if err != nil {
		return nil, fmt.Errorf("KubeEdge's store %s: %w", p.before.Database.DataSource, err)
	}
	if note != "" {
		p.Warnings = append(p.Warnings, note)
	}
	node := p.before.Modules.Edged.HostnameOverride
	p.Stored = adopt.Rows(rows, node)
	t.certificates(p, node)
	if p.Config, err = adopt.Translate(text, adopt.Paths{
		Store:    t.Store,
		Certs:    t.certs(),
		NodeName: node,
		Root:     rootOf(adopt.UIDs(p.Stored.Pods)),
		Joined:   len(p.certs) == 3,
	}); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", t.From, err)
	}
	t.preflight(ctx, p)
	if len(p.Errors) > 0 {
		return p, nil // the runtime may not answer
	}
	return p, patient(ctx, p.match)
}

// patient asks the runtime again where it does not answer: a device that is busy takes its time.
func patient(ctx context.Context, ask func(context.Context) error) error {
	return poll(ctx, answerWait, func(context.Context) error { // one answer may take longer than that
		err := ask(ctx)
		if cri.IsDown(err) {
			return errAgain{err}
		}
		return err
	})
}

func samePath(a, b string) bool { return filepath.Clean(a) == filepath.Clean(b) || sameFile(a, b) }

// mayBegin reports whether the device is one that is to be taken over.
func (t *Migration) mayBegin(p *Plan) error {
	if p.unit.program != "" && sameFile(p.unit.program, t.Service.Program) {
		return fmt.Errorf("%s is started by KubeEdge's unit %s: it has taken the place of KubeEdge's program, "+
			"without which there is no way back. "+
			"Put edgecore elsewhere (the package has it in /usr/bin), and KubeEdge's program back, and adopt again",
			p.unit.program, p.unit.path)
	}
	s, err := t.journal.load()
	if err != nil || s != nil {
		return err
	}
	if _, err := os.Stat(t.Store); err == nil {
		return fmt.Errorf("edgecore has run on this device: there is its store %s. If it holds nothing that is "+
			"needed, `edgecore reset --force` removes it", t.Store)
	}
	return nil
}

// rootOf finds out where the pods' folders are, where KubeEdge's file leaves it to its default.
func rootOf(pods []types.UID) string {
	for _, root := range []string{newRoot, oldRoot} {
		if slices.ContainsFunc(pods, func(uid types.UID) bool { return hasFolder(root, uid) }) {
			return root
		}
	}
	return newRoot
}

func hasFolder(root string, uid types.UID) bool {
	_, err := os.Stat(filepath.Join(root, "pods", string(uid)))
	return err == nil
}

// mappedDevice returns a link by which a kubelet gives a block device to a pod; "" when the pod has none.
func mappedDevice(root string, uid types.UID) string {
	// the pattern is sound
	links, _ := filepath.Glob(filepath.Join(root, "pods", string(uid), "volumeDevices", "*", "*"))
	for _, link := range links {
		if info, err := os.Lstat(link); err == nil && info.Mode()&os.ModeSymlink != 0 {
			return link
		}
	}
	return ""
}

// certificates reads the device's certificates, and checks whether they are valid.
func (t *Migration) certificates(p *Plan, node string) {
	from, to := adopt.CertFilesOf(p.before), adopt.CertFiles(t.certs())
	for _, pair := range [][2]string{{from.CA, to.CA}, {from.Cert, to.Cert}, {from.Key, to.Key}} {
		data, err := os.ReadFile(pair[0])
		switch {
		case err == nil:
			p.certs = append(p.certs, certFile{pair[1], data})
		case !errors.Is(err, os.ErrNotExist):
			p.Errors = append(p.Errors, fmt.Sprintf("certificate: %v", err))
		}
	}
	err := nodecert.New(nodecert.Options{Server: p.before.Modules.EdgeHub.HTTPServer, Node: node, Files: from}).
		Check()
	var problem *nodecert.Problem
	switch {
	case err == nil, !p.before.Modules.EdgeHub.Enable:
	case errors.As(err, &problem) && problem.Reason == nodecert.WrongNode:
		p.Errors = append(p.Errors, err.Error())
	default:
		p.Warnings = append(p.Warnings, err.Error())
	}
}

// preflight checks whether this agent could run pods here. Its ports are still KubeEdge's.
func (t *Migration) preflight(ctx context.Context, p *Plan) {
	own := &p.Config.Modules.Edged
	k := &own.TailoredKubeletConfig
	var facts *preflight.Facts
	_ = patient(ctx, func(ctx context.Context) error { // what is wrong is among the facts
		facts = preflight.Collect(ctx, preflight.Options{
			Endpoint: k.ContainerRuntimeEndpoint, CgroupDriver: k.CgroupDriver, Disks: []preflight.Disk{
				{What: "pods", Path: own.RootDirectory}, {What: "the store", Path: filepath.Dir(t.Store)},
				{What: "logs", Path: k.PodLogsDir},
			},
		})
		return facts.Runtime.Err
	})
	for _, f := range preflight.Check(facts) {
		text := f.Check + ": " + f.Text
		if f.Remedy != "" {
			text += ". " + f.Remedy
		}
		switch f.Level {
		case preflight.Error:
			p.Errors = append(p.Errors, text)
		case preflight.Warning:
			p.Warnings = append(p.Warnings, text)
		}
	}
}

// match asks the runtime what runs, and finds out to whom it belongs. It may be repeated.
func (p *Plan) match(ctx context.Context) error {
	own := &p.Config.Modules.Edged
	k := &own.TailoredKubeletConfig
	client, err := cri.Dial(k.ContainerRuntimeEndpoint, k.ImageServiceEndpoint, callTimeout)
	if err != nil {
		return err
	}
	defer client.Close()
	var oddities []string
	facts := adopt.Facts{Stored: p.Stored.Pods, Static: staticPods(k.StaticPodPath, own.HostnameOverride, &oddities),
		Images: map[string][]string{}}
	rt := runtime.New(runtime.Options{Client: client, RootDir: own.RootDirectory})
	pods, err := rt.ListPods(ctx)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		obs, err := rt.GetPod(ctx, pod.UID, nil)
		if err != nil {
			return err
		}
		obs.Namespace, obs.Name = pod.Namespace, pod.Name
		facts.Running = append(facts.Running, obs)
	}
	for _, pod := range slices.Concat(facts.Stored, facts.Static) {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if err := imageNames(ctx, client, c.Image, facts.Images); err != nil {
				return err
			}
		}
	}
	p.Findings, p.Warnings = adopt.Match(facts, time.Now()), append(p.Warnings, oddities...)
	for _, obs := range facts.Running {
		for _, c := range obs.Containers {
			if c.Running() {
				p.running = append(p.running, c.ID)
			}
		}
		if obs.Alive() && !hasFolder(own.RootDirectory, obs.UID) {
			p.Errors = append(p.Errors,
				fmt.Sprintf("pod %s/%s runs, and has no folder in %s: that is not where its volumes are. Set "+
					"modules.edged.rootDirectory in %s to where KubeEdge has them",
					obs.Namespace, obs.Name, filepath.Join(own.RootDirectory, "pods"), "KubeEdge's configuration"))
		}
		if dev := mappedDevice(own.RootDirectory, obs.UID); dev != "" {
			p.Errors = append(p.Errors,
				fmt.Sprintf("pod %s/%s has a volume of volumeMode Block (%s), which KubeEdge holds by a loop device "+
					"of its own. Delete the pod, take the device over, and make the pod again",
					obs.Namespace, obs.Name, dev))
		}
	}
	return nil
}

// staticPods reads the folder of manifests as this agent does.
func staticPods(dir, node string, warnings *[]string) (pods []*v1.Pod) {
	if dir == "" {
		return nil
	}
	source.NewStatic(source.StaticOptions{
		Dir: dir, NodeName: node, Pods: func(all []*v1.Pod) { pods = all },
		Fault: func(file string, err error) {
			if err != nil {
				*warnings = append(*warnings, fmt.Sprintf("manifest %s: %v", file, err))
			}
		},
		Warning: func(file, text string) { *warnings = append(*warnings, fmt.Sprintf("manifest %s: %s", file, text)) },
	}).Scan()
	return pods
}

// imageNames notes by which names the runtime knows an image.
func imageNames(ctx context.Context, client *cri.Client, image string, into map[string][]string) error {
	if _, ok := into[image]; ok || image == "" {
		return nil
	}
	resp, err := client.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{
		Image: &runtimeapi.ImageSpec{Image: image},
	})
	if err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("image %s: %w", image, err)
	}
	into[image] = nil
	if img := resp.GetImage(); img != nil {
		into[image] = slices.Concat([]string{img.Id}, img.RepoTags, img.RepoDigests)
	}
	return nil
}

// ownFiles are the files that only this agent has, and that were not there before it.
func (t *Migration) ownFiles(p *Plan) []string {
	root := p.Config.Modules.Edged.RootDirectory
	files := slices.Concat(servingcert.Files(root), devicecert.Files(servingcert.Dir(root)),
		[]string{filepath.Join(t.Service.Root, shutdown.ConfFile)})
	files = slices.DeleteFunc(files, func(name string) bool { _, err := os.Lstat(name); return err == nil })
	own := adopt.CertFiles(t.certs())
	return append(files, own.CA, own.Cert, own.Key)
}

// Refused is the error of a plan that is not to be carried out; nil that it is.
func (p *Plan) Refused(force bool) error {
	if len(p.Errors) > 0 {
		return fmt.Errorf("the device cannot be taken over:\n  %s", strings.Join(p.Errors, "\n  "))
	}
	if force || p.Findings == nil || len(p.Findings.Lost) == 0 {
		return nil
	}
	var lost []string
	for _, l := range p.Findings.Lost {
		lost = append(lost, l.String())
	}
	return fmt.Errorf("some containers would not keep running:\n  %s\nWait until KubeEdge has applied all changes "+
		"(kubectl get pods -o wide), and run adopt again; --force continues anyway", strings.Join(lost, "\n  "))
}
