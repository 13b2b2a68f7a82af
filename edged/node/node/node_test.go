package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// cloud is an API server of one node.
type cloud struct {
	mu   sync.Mutex
	down error
	// noLabels and noStatus refuse changes of labels and of the status.
	noLabels, noStatus error
	// leavesOut is a label that is not taken.
	leavesOut string
	node      *v1.Node
	lease     *coordinationv1.Lease
	calls     []string
	patch     string // the newest of the status
}

// call notes a call, under the lock.
func (c *cloud) call(format string, args ...any) error {
	if c.down != nil {
		return c.down
	}
	c.calls = append(c.calls, fmt.Sprintf(format, args...))
	return nil
}

func (c *cloud) took() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls = nil
	return strings.Join(calls, ", ")
}

func (c *cloud) RegisterNode(_ context.Context, node *v1.Node) (*v1.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.call("register"); err != nil {
		return nil, err
	}
	if c.node != nil {
		return nil, apierrors.NewAlreadyExists(v1.Resource("nodes"), node.Name)
	}
	c.node = node.DeepCopy()
	c.node.UID = "node-uid"
	delete(c.node.Labels, c.leavesOut)
	return c.node, nil
}

func (c *cloud) Node(context.Context, string) (*v1.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.call("get"); err != nil {
		return nil, err
	}
	if c.node == nil {
		return nil, apierrors.NewNotFound(v1.Resource("nodes"), "edge-1")
	}
	return c.node, nil
}

// now returns copies of what the cloud has.
func (c *cloud) now() (*v1.Node, *coordinationv1.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.node.DeepCopy(), c.lease.DeepCopy()
}

func (c *cloud) UpdateNode(_ context.Context, node *v1.Node) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.call("update"); err != nil {
		return err
	}
	if c.noLabels != nil {
		return c.noLabels
	}
	c.node = node.DeepCopy()
	delete(c.node.Labels, c.leavesOut)
	return nil
}

func (c *cloud) PatchNodeStatus(_ context.Context, name string, patch []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.call("status"); err != nil {
		return err
	}
	if c.noStatus != nil {
		return c.noStatus
	}
	if c.node == nil {
		return apierrors.NewNotFound(v1.Resource("nodes"), name)
	}
	c.patch = string(patch)
	before, err := json.Marshal(c.node)
	if err != nil {
		return err
	}
	after, err := strategicpatch.StrategicMergePatch(before, patch, v1.Node{})
	if err != nil {
		return err
	}
	c.node = &v1.Node{}
	return json.Unmarshal(after, c.node)
}

func (c *cloud) Lease(_ context.Context, name string) (*coordinationv1.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.call("lease"); err != nil {
		return nil, err
	}
	if c.lease == nil {
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), name)
	}
	return c.lease, nil
}

func (c *cloud) CreateLease(_ context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lease = lease
	return lease, c.call("create lease")
}

func (c *cloud) UpdateLease(_ context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lease = lease
	return lease, c.call("renew")
}

// started runs a loop in a bubble until the test's end.
func started(t *testing.T, c *cloud, change func(*Options)) *Node { return startedOn(t, c, change) }

func startedOn(t *testing.T, c Cloud, change func(*Options)) *Node {
	opts := Options{
		Name:        "edge-1",
		Labels:      map[string]string{"site": "roof"},
		Schedulable: true,
		Register:    true,
		Check:       10 * time.Second,
		Report:      5 * time.Minute,
		Lease:       40 * time.Second,
		Status: func() v1.NodeStatus {
			return v1.NodeStatus{
				Capacity: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")},
				Addresses: []v1.NodeAddress{
					{Type: v1.NodeInternalIP, Address: "192.0.2.1"}, {Type: v1.NodeInternalIP, Address: "fd00::1"},
				},
			}
		},
		Unready: func() error { return nil },
	}
	if change != nil {
		change(&opts)
	}
	n := New(c, opts)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = n.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	synctest.Wait()
	return n
}

// TestReadyFirst: whether the node is ready is asked before the rest of its status, so that what is reported with it
// is no older.
func TestReadyFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		started(t, &cloud{}, func(o *Options) {
			o.Status = func() v1.NodeStatus { asked = append(asked, "status"); return v1.NodeStatus{} }
			o.Unready = func() error { asked = append(asked, "ready"); return nil }
		})
		if got := strings.Join(asked, ", "); got != "ready, status, ready, status" {
			t.Errorf("asked for %s, want \"ready, status, ready, status\"", got)
		}
	})
}

// TestLife: registered once, a lease every 10 s, the status on change and every 5 minutes.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cloud{}
		var unready atomic.Pointer[string]
		n := started(t, c, func(o *Options) {
			o.Unready = func() error {
				if why := unready.Load(); why != nil {
					return errors.New(*why)
				}
				return nil
			}
		})
		if got := c.took(); got != "register, status, lease, create lease" {
			t.Errorf("calls %q, want \"register, status, lease, create lease\"", got)
		}
		node, lease := c.now()
		if _, edge := node.Labels["node-role.kubernetes.io/edge"]; !edge || node.Labels["site"] != "roof" ||
			node.Labels[v1.LabelHostname] != "edge-1" {
			t.Errorf("labels %v, want the role edge, the site roof and the host name edge-1", node.Labels)
		}
		if lease.OwnerReferences[0].UID != "node-uid" || *lease.Spec.HolderIdentity != "edge-1" ||
			*lease.Spec.LeaseDurationSeconds != 40 {
			t.Errorf("lease %+v, want \"node-uid\", \"edge-1\", 40", lease)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := c.took(); got != "renew, renew, renew, renew, renew, renew" {
			t.Errorf("calls %q, want six renewals", got)
		}
		c.mu.Lock() // a controller takes the node for lost
		for i := range c.node.Status.Conditions {
			c.node.Status.Conditions[i].Status, c.node.Status.Conditions[i].Reason = v1.ConditionUnknown,
				"NodeStatusUnknown"
		}
		c.mu.Unlock()
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		if got := c.took(); strings.Count(got, "status") != 1 {
			t.Errorf("status is reported %d times in 5 minutes: %s, want 1", strings.Count(got, "status"), got)
		}
		if after, _ := c.now(); strings.Contains(c.patch, "capacity") || !strings.Contains(c.patch, "conditions") ||
			!equality.Semantic.DeepEqual(after.Status.Capacity, node.Status.Capacity) ||
			strings.Contains(fmt.Sprint(after.Status.Conditions), "Unknown") {
			t.Errorf("patch = %s, want conditions alone; node = %+v, want capacity %v and known conditions",
				c.patch, after.Status, node.Status.Capacity)
		}
		unready.Store(new("container runtime is down"))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := c.took(); !strings.Contains(got, "status") {
			t.Errorf("a change is not told: %s, want \"status\"", got)
		}
		node, _ = c.now()
		ready := node.Status.Conditions[slices.IndexFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
			return c.Type == v1.NodeReady
		})]
		if ready.Status != v1.ConditionFalse || ready.Reason != "KubeletNotReady" ||
			ready.Message != "container runtime is down" || time.Since(ready.LastTransitionTime.Time) > 20*time.Second {
			t.Errorf("condition Ready is %+v, want False since at most 20 s, as the runtime is down", ready)
		}
		// Somebody deletes the Node: it comes back, with its lease.
		c.mu.Lock()
		c.node, c.lease = nil, nil
		c.mu.Unlock()
		n.Wake()
		synctest.Wait()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if node, lease := c.now(); node == nil || lease == nil {
			t.Errorf("node = %v, lease = %v after calls %s, want both registered again", node, lease, c.took())
		}
	})
}

// TestOffline: nothing is reported and nothing is kept, and all of it is reported as soon as there is a link.
func TestOffline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cloud{down: errors.New("not connected to the cloud")}
		n := started(t, c, nil)
		time.Sleep(time.Hour + 5*time.Second)
		c.mu.Lock()
		c.down = nil
		c.mu.Unlock()
		n.Wake()
		synctest.Wait()
		if got := c.took(); got != "register, status, lease, create lease" {
			t.Errorf("calls %q, want \"register, status, lease, create lease\"", got)
		}
		n.Wake()
		synctest.Wait()
		if got := c.took(); got != "status" {
			t.Errorf("over a new link: %s, want the status", got)
		}
	})
}

// TestRejoin: a Node that is there already gets our labels and keeps those of others.
func TestRejoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := metav1.NewTime(time.Now().Add(-time.Hour))
		c := &cloud{
			node: &v1.Node{
				ObjectMeta: metav1.ObjectMeta{
					Name: "edge-1", UID: "u", Labels: map[string]string{"of": "others", "site": "cellar"},
				},
				Status: v1.NodeStatus{
					Conditions: []v1.NodeCondition{
						{Type: v1.NodeReady, Status: v1.ConditionTrue, LastTransitionTime: old},
					},
				},
			},
		}
		started(t, c, nil)
		if got := c.took(); !strings.HasPrefix(got, "register, get, update, get, status") {
			t.Errorf("calls %q, want them to begin with \"register, get, update, get, status\"", got)
		}
		if node, _ := c.now(); node.Labels["of"] != "others" || node.Labels["site"] != "roof" {
			t.Errorf("labels %v, want \"others\", \"roof\"", node.Labels)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c := &cloud{}
		started(t, c, func(o *Options) { o.Register = false })
		if got := c.took(); got != "get, lease, get" {
			t.Errorf("without registerNode and without a Node: %s, want \"get, lease, get\"", got)
		}
		c.mu.Lock()
		c.node = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge-1", UID: "u"}}
		c.mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if node, lease := c.now(); len(node.Status.Conditions) == 0 || lease == nil ||
			lease.OwnerReferences[0].UID != "u" {
			t.Errorf("node %+v, lease %+v; want conditions, and a lease of the Node", node.Status, lease)
		}
	})
}

// TestLabelsLeftOut: what the cloud does not take of the configuration's labels is reported, of a new Node and of one
// that is there, until the Node has them.
func TestLabelsLeftOut(t *testing.T) {
	for name, have := range map[string]*v1.Node{
		"new":   nil,
		"there": {ObjectMeta: metav1.ObjectMeta{Name: "edge-1", UID: "u"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := &cloud{node: have, leavesOut: "example.k8s.io/line"}
			var reported []string
			n := started(t, c, func(o *Options) {
				o.Labels = map[string]string{"site": "roof", c.leavesOut: "7"}
				o.LabelsLeftOut = func(keys []string) { reported = append(reported, strings.Join(keys, " ")) }
			})
			if want := []string{c.leavesOut}; !slices.Equal(reported, want) {
				t.Errorf("%s: left out %q, want %q", name, reported, want)
			}
			c.mu.Lock()
			c.down = errors.New("no link")
			c.node.Labels[c.leavesOut] = "7" // by an administrator
			c.mu.Unlock()
			reported = nil
			time.Sleep(time.Hour)
			c.mu.Lock()
			c.down = nil
			c.mu.Unlock()
			n.Wake()
			synctest.Wait()
			node, _ := c.now()
			if node.Labels["site"] != "roof" || len(reported) == 0 || reported[len(reported)-1] != "" {
				t.Errorf("%s: labels %v, left out %q; want site=roof, and none left out at last", name, node.Labels,
					reported)
			}
		})
	}
}

// TestLeaseAlone: a Node that cannot be changed is alive all the same.
func TestLeaseAlone(t *testing.T) {
	for name, c := range map[string]*cloud{
		"labels refused": {noLabels: errors.New("not allowed")},
		"status refused": {noStatus: errors.New("not allowed")},
		"both":           {noLabels: errors.New("not allowed"), noStatus: errors.New("not allowed")},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.node = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge-1", UID: "u"}}
			started(t, c, nil)
			c.took()
			time.Sleep(time.Minute)
			synctest.Wait()
			calls := c.took()
			if got := strings.Count(calls, "renew"); got != 6 {
				t.Errorf("%s: %d renewals in a minute, want 6: %s", name, got, calls)
			}
			if _, lease := c.now(); lease.OwnerReferences[0].UID != "u" {
				t.Errorf("%s: owner of the lease = %v, want u", name, lease.OwnerReferences)
			}
			if told := c.node.Status.Capacity != nil; told != (c.noStatus == nil) {
				t.Errorf("%s: status told %v, want %v", name, told, c.noStatus == nil)
			}
		})
	}
}

// silent is a cloud that does not answer some calls until their context ends.
type silent struct {
	*cloud
	registers, renewals atomic.Bool
}

func (s *silent) RegisterNode(ctx context.Context, node *v1.Node) (*v1.Node, error) {
	if s.registers.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.cloud.RegisterNode(ctx, node)
}

func (s *silent) UpdateLease(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if s.renewals.CompareAndSwap(true, false) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.cloud.UpdateLease(ctx, lease)
}

// TestLostAnswers: a lost answer does not use up the lease, whether it is that of a renewal or that of the
// registration.
func TestLostAnswers(t *testing.T) {
	for name, lose := range map[string]func(*silent){
		"registration": func(s *silent) { s.registers.Store(true) },
		"renewal":      func(s *silent) { s.renewals.Store(true) },
	} {
		synctest.Test(t, func(t *testing.T) {
			c := &silent{cloud: &cloud{node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge-1", UID: "u"}}}}
			c.lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "edge-1"}}
			lose(c)
			startedOn(t, c, nil)
			time.Sleep(25 * time.Second) // 40 s, less what was left of it, and some for the restart of the agent
			synctest.Wait()
			if got := c.took(); !strings.Contains(got, "renew") {
				t.Errorf("calls with a lost answer of a %s = %q, want a renewal of the lease among them", name, got)
			}
		})
	}
}

// TestPartition: a Node that a controller took for lost is Ready since the link is back.
func TestPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cloud{}
		var reasons []string
		n := started(t, c, func(o *Options) {
			o.Changed = func(before, now []v1.NodeCondition) {
				if i := indexOf(before, v1.NodeReady); i >= 0 &&
					before[i].Status != now[indexOf(now, v1.NodeReady)].Status {
					reasons = append(reasons, string(before[i].Status))
				}
			}
		})
		down := func(err error) {
			c.mu.Lock()
			c.down = err
			c.mu.Unlock()
		}
		away := func(long time.Duration) v1.NodeCondition {
			down(errors.New("not connected to the cloud"))
			time.Sleep(long)
			down(nil)
			c.took()
			n.Wake()
			synctest.Wait()
			node, _ := c.now()
			return node.Status.Conditions[indexOf(node.Status.Conditions, v1.NodeReady)]
		}
		began := time.Now()
		if ready := away(20 * time.Second); !ready.LastTransitionTime.Time.Equal(began) {
			t.Errorf("after a short absence: Ready since %v, want %v", ready.LastTransitionTime, began)
		}
		if got := c.took(); strings.Contains(got, "get") {
			t.Errorf("after a short absence: %s, want no reading of the Node", got)
		}
		c.mu.Lock()
		for i := range c.node.Status.Conditions {
			c.node.Status.Conditions[i].Status = v1.ConditionUnknown
		}
		c.mu.Unlock()
		ready := away(2 * time.Minute)
		if ready.Status != v1.ConditionTrue || !ready.LastTransitionTime.Time.Equal(time.Now()) {
			t.Errorf("after a long absence: Ready is %+v, want True since %v", ready, time.Now())
		}
		if diff := cmp.Diff([]string{"Unknown"}, reasons); diff != "" {
			t.Errorf("changes of Ready, from (-want +got):\n%s", diff)
		}
	})
}

// TestVanished: what the Node lists and this device does not have is not offered any more.
func TestVanished(t *testing.T) {
	list := func(all ...string) v1.ResourceList {
		out := v1.ResourceList{}
		for _, one := range all {
			name, q, _ := strings.Cut(one, "=")
			out[v1.ResourceName(name)] = resource.MustParse(q)
		}
		return out
	}
	before := list("cpu=4", "hugepages-1Gi=2Gi", "hugepages-2Mi=8Mi", "example.com/gpu=2", "example.com/tpu=1")
	for name, c := range map[string]struct {
		forgotten bool
		want      v1.ResourceList
	}{
		"the file of devices is there": {
			false, list("cpu=2", "hugepages-2Mi=0", "example.com/gpu=2", "example.com/tpu=1"),
		},
		"it is lost": {
			true, list("cpu=2", "hugepages-2Mi=0", "example.com/gpu=0", "example.com/tpu=1"),
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			forgotten := c.forgotten
			api := &cloud{node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge-1", UID: "u"}}}
			api.node.Status.Capacity, api.node.Status.Allocatable = before.DeepCopy(), before.DeepCopy()
			started(t, api, func(o *Options) {
				o.Status = func() v1.NodeStatus {
					has := list("cpu=2", "hugepages-2Mi=0", "example.com/tpu=1")
					return v1.NodeStatus{Capacity: has, Allocatable: has.DeepCopy()}
				}
				o.Forgotten = func() bool { return forgotten }
				o.Reported = func(*v1.NodeStatus) { forgotten = false }
			})
			time.Sleep(time.Minute)
			synctest.Wait()
			node, _ := api.now()
			for what, got := range map[string]v1.ResourceList{
				"capacity": node.Status.Capacity, "allocatable": node.Status.Allocatable,
			} {
				if !equality.Semantic.DeepEqual(c.want, got) {
					t.Errorf("%s: %s = %v, want %v", name, what, got, c.want)
				}
			}
		})
	}
}

// TestPatch: what the patch makes of a Node is the status, with the conditions of others.
func TestPatch(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	before := &v1.Node{
		Status: v1.NodeStatus{
			Addresses: []v1.NodeAddress{
				{Type: v1.NodeInternalIP, Address: "192.0.2.1"}, {Type: v1.NodeExternalIP, Address: "192.0.2.9"},
			},
			Conditions: []v1.NodeCondition{
				{Type: "Other", Status: v1.ConditionTrue}, {Type: v1.NodeReady, Status: v1.ConditionFalse},
			},
			DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: 10351}},
		},
	}
	status := v1.NodeStatus{
		Addresses: []v1.NodeAddress{
			{Type: v1.NodeInternalIP, Address: "192.0.2.2"}, {Type: v1.NodeInternalIP, Address: "fd00::2"},
		},
		Conditions: conditions(nil, nil, before.Status.Conditions, now),
	}
	text, err := patch(&status, nil)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	if data, err = strategicpatch.StrategicMergePatch(data, text, v1.Node{}); err != nil {
		t.Fatal(err)
	}
	var after v1.Node
	if err := json.Unmarshal(data, &after); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(status.Addresses, after.Status.Addresses); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if len(after.Status.Conditions) != 5 || after.Status.DaemonEndpoints.KubeletEndpoint.Port != 10351 {
		t.Errorf("status is %+v, want 5 conditions and the port 10351", after.Status)
	}
}

// TestPatchOfOldAPI: fields that the API of an older cluster does not know do no harm to the ones that it does.
func TestPatchOfOldAPI(t *testing.T) {
	type oldStatus struct {
		Capacity  v1.ResourceList  `json:"capacity,omitempty"`
		Addresses []v1.NodeAddress `json:"addresses,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
	}
	type oldNode struct {
		Status oldStatus `json:"status,omitempty"`
	}
	status := v1.NodeStatus{
		Capacity:         v1.ResourceList{v1.ResourcePods: resource.MustParse("9")},
		Addresses:        []v1.NodeAddress{{Type: v1.NodeHostName, Address: "edge-1"}},
		DeclaredFeatures: []string{"A", "B"},
		Features:         &v1.NodeFeatures{SupplementalGroupsPolicy: new(true)},
	}
	for _, status := range []v1.NodeStatus{status, {Capacity: status.Capacity, Addresses: status.Addresses}} {
		text, err := patch(&status, nil)
		if err != nil {
			t.Fatal(err)
		}
		data := []byte(`{"status":{"capacity":{"pods":"1"}}}`)
		if data, err = strategicpatch.StrategicMergePatch(data, text, oldNode{}); err != nil {
			t.Fatal(err)
		}
		var after oldNode
		if err := json.Unmarshal(data, &after); err != nil {
			t.Fatal(err)
		}
		want := oldNode{oldStatus{Capacity: status.Capacity, Addresses: status.Addresses}}
		if !equality.Semantic.DeepEqual(want, after) {
			t.Errorf("patched Node = %+v, want %+v", after, want)
		}
	}
}

// TestOtherConditions: what others know takes the place of what is taken to hold, and comes beside it; since when, too.
func TestOtherConditions(t *testing.T) {
	at := func(minute int, more []v1.NodeCondition, before []v1.NodeCondition) []v1.NodeCondition {
		return conditions(nil, more, before, metav1.NewTime(time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)))
	}
	healthy := at(0, nil, nil)
	full := at(1, []v1.NodeCondition{
		{Type: v1.NodeDiskPressure, Status: v1.ConditionTrue, Reason: "KubeletHasDiskPressure"},
		{Type: "Other", Status: v1.ConditionTrue},
	}, healthy)
	again := at(2, full, full)
	var got []string
	for _, c := range again {
		got = append(got, fmt.Sprint(c.Type, " ", c.Status, " since ", c.LastTransitionTime.Minute(), " told ",
			c.LastHeartbeatTime.Minute()))
	}
	want := []string{
		"MemoryPressure False since 0 told 2", "DiskPressure True since 1 told 2", "PIDPressure False since 0 told 2",
		"Ready True since 0 told 2", "Other True since 1 told 2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTaints: a Node that takes no pods says so in a taint, once.
func TestTaints(t *testing.T) {
	gpu, own := v1.Taint{Key: "gpu", Effect: v1.TaintEffectNoExecute},
		v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}
	for _, c := range []struct {
		o    Options
		want []v1.Taint
	}{
		{Options{Schedulable: true, Taints: []v1.Taint{gpu}}, []v1.Taint{gpu}},
		{Options{Taints: []v1.Taint{gpu}}, []v1.Taint{gpu, own}},
		{Options{Taints: []v1.Taint{own}}, []v1.Taint{own}},
	} {
		if diff := cmp.Diff(c.want, object(&c.o, v1.NodeStatus{}).Spec.Taints); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c.o, diff)
		}
	}
}

// TestRenewTime: a lease goes forward though the clock does not.
func TestRenewTime(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		before *metav1.MicroTime
		now    time.Time
		want   time.Time
	}{
		{nil, now, now},
		{&metav1.MicroTime{Time: now}, now.Add(time.Second), now.Add(time.Second)},
		{&metav1.MicroTime{Time: now}, time.Unix(60, 0), now.Add(10 * time.Second)},
	} {
		if got := renewTime(c.now, c.before, 10*time.Second); !got.Equal(c.want) {
			t.Errorf("at %v after %v: %v, want %v", c.now, c.before, got, c.want)
		}
	}
}

// TestLook: a change is reported at once, and what has not changed is not told.
func TestLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cloud{}
		var full atomic.Bool
		var changes []string
		n := started(t, c, func(o *Options) {
			o.Conditions = func() []v1.NodeCondition {
				if full.Load() {
					return []v1.NodeCondition{{Type: v1.NodeDiskPressure, Status: v1.ConditionTrue}}
				}
				return nil
			}
			o.Changed = func(before, now []v1.NodeCondition) {
				if len(before) > 0 && before[1].Status != now[1].Status {
					changes = append(changes, string(now[1].Status))
				}
			}
		})
		c.took()
		n.Look()
		synctest.Wait()
		if got := c.took(); got != "" {
			t.Errorf("nothing changed, and told: %s; want \"\"", got)
		}
		full.Store(true)
		n.Look()
		synctest.Wait()
		if got := c.took(); got != "status" {
			t.Errorf("a change: %q, want the status", got)
		}
		if diff := cmp.Diff([]string{"True"}, changes); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
	})
}

// TestHeartbeatsAreNoNews
func TestHeartbeatsAreNoNews(t *testing.T) {
	at := func(minute int, unready error, before []v1.NodeCondition) *v1.NodeStatus {
		return &v1.NodeStatus{
			Conditions: conditions(unready, nil, before,
				metav1.NewTime(time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC))),
		}
	}
	first := at(0, nil, nil)
	if changed(first, at(5, nil, first.Conditions)) {
		t.Error("changed(the same status five minutes later) = true, want false")
	}
	if !changed(first, at(5, errors.New("x"), first.Conditions)) {
		t.Error("changed(ready, unready) = false, want true")
	}
	if !changed(nil, first) {
		t.Error("changed(nil, ready) = false, want true")
	}
	later, want := at(5, nil, first.Conditions).Conditions[3].LastTransitionTime, first.Conditions[3].LastTransitionTime
	if later != want {
		t.Errorf("transition of an unchanged condition = %v, want %v", later, want)
	}
}
