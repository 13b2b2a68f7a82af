package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var (
	faults = flag.Int("faults", 60, "how many faults TestFaults makes; the long form is 1000")
	seed   = flag.Uint64("seed", 1, "the seed of TestFaults")
)

// weights say how often each fault comes, relative to the others.
var weights = []struct {
	name   string
	weight int
}{
	{"drop", 90}, {"duplicate", 80}, {"echo", 80}, {"reorder", 80}, {"delay", 60}, {"cut frame", 60},
	{"cut", 90}, {"silence", 110}, {"slow", 100}, {"kill edgecore", 150}, {"kill cloudcore", 80},
	{"restart the API server", 20},
	{"short links", 20}, {"force deletion", 60}, {"lagging cloudcore", 40}, {"restore etcd", 10},
	{"cloned device", 15},
}

// rivals are what some faults need beside the edge, its cable and its cluster.
type rivals struct {
	frames *proxy.Frames
	// second is another cloudcore of the cluster, to which the edge moves for a while.
	second *env.Cluster
	// backup is a folder with the data of etcd from before the first fault.
	backup string
	// runtime is that of the copies of the edge.
	runtime *containerd.Instance
}

// TestFaults: random faults of the link and of both ends while pods and configmaps change. Afterwards the API server,
// the device's store and its runtime agree, also on the status of each pod, and the pods that nobody touched were never
// restarted.
func TestFaults(t *testing.T) {
	t.Parallel()
	e := startEdge(t, startCluster(t, kube.Options{}), map[string]any{"heartbeat": 1})
	x := rivals{frames: e.meddle(), second: e.cluster.WithCloud(t), backup: filepath.Join(t.TempDir(), "etcd"),
		runtime: testenv.StartContainerd(t, testenv.Options{})}
	e.apply(confAndKey, e.full("steady"))
	e.running("steady")
	before := e.RunningContainers()
	env.Must(t, e.cluster.Kube.Backup(t.Context(), x.backup))
	t.Logf("%d faults, seed %d", *faults, *seed)
	ctx, stop := context.WithCancel(t.Context())
	var change sync.WaitGroup
	change.Go(func() { e.changeAtRandom(ctx, rand.New(rand.NewPCG(*seed, 2))) })
	e.makeFaults(x, rand.New(rand.NewPCG(*seed, 1)))
	stop()
	change.Wait()
	x.frames.Disarm()
	x.second.StopCloud()
	e.cable.Delay(0)
	e.cable.Set(proxy.Passing)
	wait.Until(t, "the API server, the store and the runtime to agree", e.agree)
	e.unchanged(before, "faults that do not concern it")
}

// meddle puts a man in the middle into the cable, who shows the edge cloudcore's certificate and cloudcore the edge's.
func (e *edge) meddle() *proxy.Frames {
	e.T.Helper()
	secret := func(name string) map[string][]byte {
		found, err := e.cluster.API.CoreV1().Secrets("kubeedge").Get(e.T.Context(), name, metav1.GetOptions{})
		env.Must(e.T, err)
		return found.Data
	}
	server := secret("cloudcoresecret")
	key, err := certs.ParseKey(server["cloudcorekeydata"])
	env.Must(e.T, err)
	ca, err := x509.ParseCertificate(secret("casecret")["cadata"])
	env.Must(e.T, err)
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	frames, err := proxy.StartFrames(proxy.FramesOptions{
		Target: net.JoinHostPort("127.0.0.1", strconv.Itoa(e.cluster.Cloud.Link)), Roots: roots, Seed: *seed,
		Server: tls.Certificate{Certificate: [][]byte{server["cloudcoredata"]}, PrivateKey: key},
		Client: func() (tls.Certificate, error) {
			return tls.LoadX509KeyPair(filepath.Join(e.Dir, "edge.crt"), filepath.Join(e.Dir, "edge.key"))
		},
	})
	env.Must(e.T, err)
	e.T.Cleanup(func() { env.Must(e.T, frames.Close()) })
	e.cable.Retarget(frames.Addr())
	return frames
}

// makeFaults makes faults until there were enough. One that found no message to be done to is none.
func (e *edge) makeFaults(x rivals, r *rand.Rand) {
	e.T.Helper()
	total := 0
	for _, w := range weights {
		total += w.weight
	}
	count := map[string]int{}
	for made := 0; made < *faults; {
		n, what := r.IntN(total), ""
		for _, w := range weights {
			if n -= w.weight; n < 0 {
				what = w.name
				break
			}
		}
		if !e.fault(x, what, r) {
			continue
		}
		count[what]++
		if made++; made%100 == 0 || made == *faults {
			e.T.Logf("%d faults: %v", made, count)
		}
	}
	e.checkKinds(count)
}

// checkKinds checks that the faults were of all kinds, if there were as many as in the long form. The seed decides what
// is tried: with seed 1 the 60 faults of the short form have at least 2 cuts and 6 kills of edgecore. Of those of a
// message one is enough, as they need messages to be done to.
func (e *edge) checkKinds(count map[string]int) {
	e.T.Helper()
	messages := 0
	for _, w := range weights {
		if ofMessage(w.name) {
			messages += count[w.name]
		}
		must := *faults >= 1000 || *faults >= 60 && (w.name == "cut" || w.name == "kill edgecore")
		if must && count[w.name] == 0 {
			e.T.Errorf("%q has happened 0 times in %d faults with seed %d, want at least 1", w.name, *faults, *seed)
		}
	}
	if *faults >= 60 && messages == 0 {
		e.T.Errorf("faults with seed %d are %v, want at least 1 of a message", *seed, count)
	}
}

// ofMessage reports whether a fault is done to one message.
func ofMessage(what string) bool {
	switch what {
	case "cut", "silence", "slow", "kill edgecore", "kill cloudcore", "restart the API server",
		"short links", "force deletion", "lagging cloudcore", "restore etcd", "cloned device":
		return false
	}
	return true
}

// fault makes one fault, and reports whether there was one.
func (e *edge) fault(x rivals, what string, r *rand.Rand) bool {
	e.T.Helper()
	ctx, frames := e.T.Context(), x.frames
	switch what {
	case "cut": // in the middle of whatever is under way
		e.cable.CutAfter(int64(r.IntN(20000)))
		wait.Until(e.T, "the link to be cut, or idle", func() error {
			if e.cable.Conns() == 0 {
				return nil
			}
			e.cable.CutAfter(0)
			return errors.New("still up")
		})
	case "silence":
		e.cable.Set(proxy.Silent)
		time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
		e.cable.Set(proxy.Passing)
	case "slow":
		e.cable.Delay(time.Duration(r.IntN(30)) * time.Millisecond)
		time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
	case "kill edgecore":
		env.Must(e.T, e.Kill9(ctx))
		env.Must(e.T, e.Start(ctx))
		time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
	case "kill cloudcore":
		env.Must(e.T, e.cluster.Cloud.Kill9(ctx))
		env.Must(e.T, e.cluster.Cloud.Start(ctx))
		time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
	case "restart the API server":
		env.Must(e.T, e.cluster.Kube.APIServer.Restart(ctx))
	case "short links":
		for range 3 {
			wait.True(e.T, "a link", func() bool { return e.cable.Conns() > 0 })
			time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
			e.cable.Set(proxy.Cut)
			e.cable.Set(proxy.Passing)
		}
	case "force deletion": // of a pod that comes again under its name while the edge is away
		e.cable.Set(proxy.Cut)
		pods := e.cluster.API.CoreV1().Pods(e.NodeName)
		name := fmt.Sprintf("p%d", r.IntN(4))
		_ = pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		_, _ = pods.Create(ctx, e.randomPod(name), metav1.CreateOptions{})
		time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
		e.cable.Set(proxy.Passing)
	case "lagging cloudcore":
		e.moveTo(x.second.Cloud, net.JoinHostPort("127.0.0.1", strconv.Itoa(x.second.Cloud.Link)), r)
		e.moveTo(e.cluster.Cloud, frames.Addr(), r)
	case "restore etcd":
		env.Must(e.T, e.cluster.Kube.Restore(ctx, x.backup))
		for _, c := range []*cloud.Cloud{e.cluster.Cloud, x.second.Cloud} { // as its Deployment does when it noticed
			env.Must(e.T, c.Kill9(ctx))
			env.Must(e.T, c.Start(ctx))
		}
	case "cloned device": // its copy is connected to either cloudcore, and reports statuses of its own
		to := []*cloud.Cloud{e.cluster.Cloud, x.second.Cloud}[r.IntN(2)]
		twin := e.cloneTo(to, x.runtime)
		time.Sleep(time.Duration(r.IntN(5000)) * time.Millisecond)
		env.Must(e.T, twin.Kill9(ctx))
		testenv.RemoveSandboxes(e.T, twin.CRI)
	default: // of one message
		m := proxy.Mischief(what)
		before := frames.Done()[m]
		frames.Arm(proxy.Direction(r.IntN(2)), m)
		for end := time.Now().Add(2 * time.Second); frames.Done()[m] == before; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				frames.Disarm()
				return false
			}
		}
	}
	return true
}

// moveTo moves the edge to a cloudcore that was paused while objects changed, so that its caches are behind.
func (e *edge) moveTo(to *cloud.Cloud, addr string, r *rand.Rand) {
	e.T.Helper()
	env.Must(e.T, to.Pause(e.T.Context()))
	time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
	e.cable.Retarget(addr)
	env.Must(e.T, to.Resume())
	time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
}

// changeAtRandom makes, changes and deletes pods and configmaps until ctx ends. While the API server is away it
// tries again.
func (e *edge) changeAtRandom(ctx context.Context, r *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("p%d", r.IntN(4))
		switch r.IntN(4) {
		case 0:
			_, _ = e.cluster.API.CoreV1().Pods(e.NodeName).Create(ctx, e.randomPod(name), metav1.CreateOptions{})
		case 1:
			_ = e.cluster.API.CoreV1().Pods(e.NodeName).Delete(ctx, name,
				metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(r.IntN(2)))})
		case 2:
			patch := fmt.Sprintf(`{"data":{"a":"v%d"}}`, n)
			_, _ = e.cluster.API.CoreV1().ConfigMaps(e.NodeName).Patch(ctx, "conf", types.MergePatchType, []byte(patch),
				metav1.PatchOptions{})
		case 3:
			patch := fmt.Sprintf(`{"metadata":{"labels":{"n":"v%d"}}}`, n)
			_, _ = e.cluster.API.CoreV1().Pods(e.NodeName).Patch(ctx, "steady", types.MergePatchType, []byte(patch),
				metav1.PatchOptions{})
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(r.IntN(600)) * time.Millisecond):
		}
	}
}

func (e *edge) randomPod(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: e.NodeName},
		Spec: v1.PodSpec{
			NodeName:                      e.NodeName,
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Volumes: []v1.Volume{
				{
					Name: "conf", VolumeSource: v1.VolumeSource{
						ConfigMap: &v1.ConfigMapVolumeSource{
							LocalObjectReference: v1.LocalObjectReference{Name: "conf"},
						},
					},
				},
			},
			Containers: []v1.Container{{
				Name:            "main",
				Image:           "edgecore.local/demo:1",
				ImagePullPolicy: v1.PullIfNotPresent,
				Command:         []string{"sh", "-c", env.Forever},
				VolumeMounts:    []v1.VolumeMount{{Name: "conf", MountPath: "/conf"}},
			}},
		},
	}
}

// agree checks that the API server, the store and the runtime have the same pods and objects.
func (e *edge) agree() error {
	list, err := e.cluster.API.CoreV1().Pods(e.NodeName).List(e.T.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	running := e.RunningContainers()
	want := map[string]any{}
	for i := range list.Items {
		p := &list.Items[i]
		if p.DeletionTimestamp != nil || env.RunningPod(p) != nil {
			return fmt.Errorf("pod %s: %s, being deleted at %v", p.Name, p.Status.Phase, p.DeletionTimestamp)
		}
		id := containerID(p)
		if running[id] == 0 {
			return fmt.Errorf("pod %s: its container %s does not run", p.Name, id)
		}
		delete(running, id)
		p.APIVersion, p.Kind = "v1", "Pod"
		want[e.NodeName+"/pod/"+p.Name] = p
	}
	if len(running) > 0 {
		return fmt.Errorf("%d containers run that are nobody's", len(running))
	}
	for _, name := range []string{"conf", "kube-root-ca.crt"} {
		c, err := e.cluster.API.CoreV1().ConfigMaps(e.NodeName).Get(e.T.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		want[e.NodeName+"/configmap/"+name] = c
	}
	secret, err := e.cluster.API.CoreV1().Secrets(e.NodeName).Get(e.T.Context(), "key", metav1.GetOptions{})
	if err != nil {
		return err
	}
	want[e.NodeName+"/secret/key"] = secret
	return e.storeHas(want)
}

// storeHas stops the agent, and checks that its store has these pods, configmaps and secrets and no others, that the
// status of each pod is the one that the node has reported last, and that nothing waits for the cloud.
func (e *edge) storeHas(want map[string]any) (err error) {
	ctx := e.T.Context()
	env.Must(e.T, e.Stop(ctx))
	// Or the old connection could pass for the new one.
	wait.Until(e.T, "cloudcore to see that the edge is gone", func() error { return e.connected(0) })
	defer func() {
		env.Must(e.T, e.Start(ctx))
		if err != nil {
			wait.Until(e.T, "the edge to be settled over a new link", e.settled) // before it is stopped again
		}
	}()
	db, recovery, err := store.Open(ctx, e.Store(), store.Options{})
	if err != nil || recovery != nil {
		e.T.Fatalf("open the store: recovery %v, error %v, want neither", recovery, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	wrong, err := statusesDiffer(ctx, db, want)
	if err != nil {
		return err
	}
	for _, typ := range []string{"pod", "configmap", "secret"} {
		rows, err := db.List(ctx, typ)
		if err != nil {
			return err
		}
		for _, row := range rows {
			obj, ok := want[row.Key]
			if !ok {
				wrong = append(wrong, row.Key+" is in the store alone")
				continue
			}
			delete(want, row.Key)
			if err := same(obj, row.Value); err != nil {
				wrong = append(wrong, fmt.Sprintf("%s: %v", row.Key, err))
			}
		}
	}
	for key := range want {
		wrong = append(wrong, key+" is not in the store")
	}
	reports, err := db.Outbox(ctx)
	if err != nil {
		return err
	}
	for _, r := range reports {
		if !strings.Contains(r.Key, "/event/") {
			wrong = append(wrong, r.Key+" waits for the cloud")
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

// statusesDiffer compares the status of each pod at the API server with the one that the node has stored.
func statusesDiffer(ctx context.Context, db *store.Store, want map[string]any) (wrong []string, err error) {
	rows, err := db.List(ctx, resource.TypePodPatch)
	if err != nil {
		return nil, err
	}
	reported := map[types.UID][]byte{}
	for _, row := range rows {
		var patch metav1.PartialObjectMetadata
		if err := json.Unmarshal(row.Value, &patch); err != nil {
			return nil, fmt.Errorf("%s: %w", row.Key, err)
		}
		reported[patch.UID] = row.Value
	}
	for key, obj := range want {
		pod, ok := obj.(*v1.Pod)
		if !ok {
			continue
		}
		text, err := json.Marshal(v1.Pod{Status: pod.Status})
		if err != nil {
			return nil, err
		}
		atAPI, err := wire.StatusHash(text)
		if err != nil {
			return nil, err
		}
		onNode, err := wire.StatusHash(reported[pod.UID])
		if err != nil || atAPI != onNode {
			wrong = append(wrong, fmt.Sprintf("%s: its status is %s at the API server, %s on the node, error %v", key,
				text, reported[pod.UID], err))
		}
	}
	return wrong, nil
}

func same(obj any, stored []byte) error {
	text, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	want, err := wire.Version(text)
	if err != nil {
		return err
	}
	got, err := wire.Version(stored)
	if err == nil && got != want {
		err = errors.New("differs")
	}
	return err
}
