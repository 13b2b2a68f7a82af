package edged

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/version"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/node"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// This file is what the cloud is told of the node, and what becomes of pods while the runtime has no network for them.

const (
	// networkCheck is how often the runtime is asked for its conditions, which it has no event for; while one does not
	// hold it is asked after networkAgain, and then at growing intervals up to networkAgainMax.
	networkCheck    = 15 * time.Second
	networkAgain    = time.Second
	networkAgainMax = 5 * time.Second
	// imagesFresh is how long the list of images is good for the status.
	imagesFresh = time.Minute
	// listTimeout bounds the list of images.
	listTimeout = 10 * time.Second
)

// nodeFacts are what the node's status is made of and nobody else keeps. The zero value is ready.
type nodeFacts struct {
	mu       sync.Mutex
	images   []v1.ContainerImage
	imagesAt time.Time
	// asked: the runtime has said how it is; runtime and network say why the runtime cannot run pods, and why they have no network; "" that it is well.
	asked            bool
	runtime, network string
	// told is how the cloud was last told that the agent's conditions are; it has not heard of those that are missing.
	told map[health.Code]v1.ConditionStatus
}

// tell notes how the cloud was told that a condition is. It is called under the lock.
func (f *nodeFacts) tell(code health.Code, status v1.ConditionStatus) {
	if f.told == nil {
		f.told = map[health.Code]v1.ConditionStatus{}
	}
	f.told[code] = status
}

// nodeStatus is the status of the node, without its conditions.
func (e *Edged) nodeStatus() v1.NodeStatus {
	addresses := make([]v1.NodeAddress, 0, 3)
	for _, ip := range e.hostIPs() {
		addresses = append(addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	system := e.system
	name, _ := e.runtimeName.Load().(string)
	runtimeVersion, _ := e.runtimeVersion.Load().(string)
	if name != "" {
		system.ContainerRuntimeVersion = name + "://" + plainVersion(runtimeVersion)
	}
	features, _ := e.runtime.Known()
	handlers, nodeFeatures := nodeHandlers(features)
	capacity, allocatable := e.devices.Capacity()
	maps.Copy(capacity, e.opts.Capacity)
	maps.Copy(allocatable, e.opts.Allocatable)
	return v1.NodeStatus{
		Capacity: capacity, Allocatable: allocatable, NodeInfo: system, RuntimeHandlers: handlers, Features: nodeFeatures,
		Addresses: append(addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: e.opts.NodeName}), VolumesInUse: e.csi.VolumesInUse(),
		Images: e.nodeImages(), DaemonEndpoints: e.daemonEndpoints(), DeclaredFeatures: declaredFeatures(),
	}
}

// plainVersion is a runtime's version without what its packager has added, as kubelets tell it.
func plainVersion(text string) string {
	if v, err := version.ParseSemantic(text); err == nil {
		return v.String()
	}
	if v, err := version.ParseGeneric(text); err == nil {
		return v.String()
	}
	return text
}

// declaredFeatures are the features that a cluster of v1.36 takes from a node's status, in order: without the first the
// scheduler binds no pod with such a rule to the node, without the others the API server refuses to resize what they name.
// ExtendWebSocketsToKubelet is not among them: WebSockets to the node's port are translated by the API server.
func declaredFeatures() []string {
	return []string{
		"InPlacePodLevelResourcesVerticalScaling",
		"InPlacePodVerticalScalingInitContainers",
		"RestartAllContainersOnContainerExits",
	}
}

// nodeImages are the images for the status; those of before while the runtime does not answer.
func (e *Edged) nodeImages() []v1.ContainerImage {
	if e.opts.StatusImages == 0 {
		return nil
	}
	f := &e.nodeFacts
	f.mu.Lock()
	images, at := f.images, f.imagesAt
	f.mu.Unlock()
	if !at.IsZero() && time.Since(at) < imagesFresh || e.pleg.Healthy() != nil {
		return images
	}
	ctx, cancel := context.WithTimeout(e.life, listTimeout)
	defer cancel()
	list, err := e.client.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		klog.V(2).InfoS("Images for the node's status not listed; trying again", "err", err)
		return images
	}
	images = node.Images(list.GetImages(), e.opts.StatusImages)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.images, f.imagesAt = images, time.Now()
	return images
}

// unready says why this node cannot run pods, in the kubelet's words; nil that it can.
func (e *Edged) unready() error {
	e.nodeFacts.mu.Lock()
	asked, runtime, network := e.nodeFacts.asked, e.nodeFacts.runtime, e.nodeFacts.network
	e.nodeFacts.mu.Unlock()
	return unreadyFor(e.pleg.Healthy(), asked, runtime, network, e.gate.Closed())
}

// unreadyFor brings together what keeps a node from running pods: one cause as it is, several as "[a, b]".
func unreadyFor(pleg error, asked bool, runtime, network string, shuttingDown bool) error {
	var errs []error
	switch {
	case pleg != nil:
		errs = append(errs, errors.New("container runtime is down"), fmt.Errorf("PLEG is not healthy: %w", pleg))
	case !asked:
		errs = append(errs, errors.New("container runtime status check may not have completed yet"))
	default:
		if runtime != "" {
			errs = append(errs, fmt.Errorf("container runtime not ready: RuntimeReady=false %s", runtime))
		}
		if network != "" {
			errs = append(errs, networkError(network))
		}
	}
	if shuttingDown {
		errs = append(errs, errShuttingDown)
	}
	return aggregate(errs)
}

// aggregate is nil where there are no errors.
func aggregate(errs []error) error {
	if all := utilerrors.NewAggregate(errs); all != nil {
		return all
	}
	return nil
}

func networkError(why string) error {
	return fmt.Errorf("container runtime network not ready: NetworkReady=false %s", why)
}

// reportable are those of the agent's own conditions that are shown on the Node. Those of the link are not: they are over when
// somebody reads of them there; nor are those that make it unready, which says so itself.
func reportable() []health.Code {
	return []health.Code{health.CgroupsIncomplete, health.CgroupsFailing, health.ClockNotSet, health.StoreRecovered, health.StoreFailing, health.CertificateEnding,
		health.StaticPodBad, health.ImageDamaged, health.ReportTooLarge}
}

// ownConditions makes conditions of the Node of those of the agent. One that is over stays as False, when it has been
// told; a healthy node has none of them. It is pure.
func ownConditions(now []health.Condition, told map[health.Code]v1.ConditionStatus) []v1.NodeCondition {
	var list []v1.NodeCondition
	for _, code := range reportable() {
		i := slices.IndexFunc(now, func(c health.Condition) bool { return c.Code == code })
		switch {
		case i >= 0:
			list = append(list, v1.NodeCondition{Type: v1.NodeConditionType(code), Status: v1.ConditionTrue, Reason: string(code), Message: conditionText(&now[i])})
		case told[code] != "":
			list = append(list, v1.NodeCondition{Type: v1.NodeConditionType(code), Status: v1.ConditionFalse, Reason: "Over", Message: "this is over"})
		}
	}
	return list
}

func conditionText(c *health.Condition) string {
	text := c.Title
	for _, more := range []string{c.Object, c.Detail} {
		if more != "" {
			text += ": " + more
		}
	}
	return text + ". " + c.Remedy
}

// agentConditions are those of the agent that the Node shows. New ones are told in events, too.
func (e *Edged) agentConditions() []v1.NodeCondition {
	now := e.health.Snapshot()
	e.nodeFacts.mu.Lock()
	defer e.nodeFacts.mu.Unlock()
	list := ownConditions(now, e.nodeFacts.told)
	for i := range list {
		code := health.Code(list[i].Type)
		if list[i].Status == v1.ConditionTrue && e.nodeFacts.told[code] != v1.ConditionTrue {
			e.recorder.NodeEventf(v1.EventTypeWarning, string(code), "%s", list[i].Message)
		}
		e.nodeFacts.tell(code, list[i].Status)
	}
	return list
}

// nodeConditions are those of the Node beside Ready.
func (e *Edged) nodeConditions() []v1.NodeCondition {
	return append(e.agentConditions(), e.pressures()...)
}

// nodeChanged tells of changed conditions of the node in events.
func (e *Edged) nodeChanged(before, now []v1.NodeCondition) {
	for _, reason := range nodeReasons(before, now) {
		e.recorder.NodeEventf(v1.EventTypeNormal, reason, "Node %s status is now: %s", e.opts.NodeName, reason)
	}
}

// nodeReasons are the kubelet's reasons of the events that tell of changed conditions. Nothing is told of the first ones, which
// hold since before. It is pure.
func nodeReasons(before, now []v1.NodeCondition) []string {
	words := map[v1.NodeConditionType][2]string{
		v1.NodeReady:          {"NodeReady", "NodeNotReady"},
		v1.NodeMemoryPressure: {"NodeHasInsufficientMemory", "NodeHasSufficientMemory"},
		v1.NodeDiskPressure:   {"NodeHasDiskPressure", "NodeHasNoDiskPressure"},
		v1.NodePIDPressure:    {"NodeHasInsufficientPID", "NodeHasSufficientPID"},
	}
	var reasons []string
	for _, c := range now {
		i := slices.IndexFunc(before, func(b v1.NodeCondition) bool { return b.Type == c.Type })
		word, known := words[c.Type]
		if !known || i < 0 || before[i].Status == c.Status {
			continue
		}
		if c.Status == v1.ConditionTrue {
			reasons = append(reasons, word[0])
		} else {
			reasons = append(reasons, word[1])
		}
	}
	return reasons
}

// nodeFound is told of the Node from an earlier life of this agent: what was told then and is over is to be told.
func (e *Edged) nodeFound(have *v1.Node) {
	e.addresses.remember(&have.Status)
	e.nodeFacts.mu.Lock()
	for _, c := range have.Status.Conditions {
		if code := health.Code(c.Type); slices.Contains(reportable(), code) && e.nodeFacts.told[code] == "" {
			e.nodeFacts.tell(code, c.Status)
		}
	}
	e.nodeFacts.mu.Unlock()
	if was := have.Status.NodeInfo.BootID; was != "" && was != e.system.BootID {
		e.recorder.NodeEventf(v1.EventTypeWarning, "Rebooted", "Node %s has been rebooted, boot id: %s", e.opts.NodeName, e.system.BootID)
	}
}

// watchNetwork asks the runtime for its conditions until ctx ends: they change without a word, when somebody puts a CNI
// configuration into its folder, say.
func (e *Edged) watchNetwork(ctx context.Context) error {
	if e.node != nil { // the cloud tells by it an agent that starts from a link that comes back
		e.recorder.NodeEventf(v1.EventTypeNormal, "Starting", "Starting kubelet.")
	}
	again := networkAgain
	for {
		wait := networkCheck
		if e.unready() != nil {
			wait, again = again, min(2*again, networkAgainMax)
		} else {
			again = networkAgain
		}
		if !retry.Sleep(ctx, wait) {
			return nil
		}
		if e.pleg.Healthy() != nil {
			continue // its return is noticed elsewhere
		}
		if !e.runtimeLearned.Load() {
			e.lookAtRuntime(ctx)
		} else if st, err := e.runtime.Status(ctx); err == nil {
			e.runtimeSaid(st)
		}
	}
}

// runtimeSaid takes note of what the runtime says of itself. Pods that waited for a network do so no more.
func (e *Edged) runtimeSaid(st *runtimeapi.RuntimeStatus) {
	broken := map[string]string{}
	for _, c := range st.GetConditions() {
		if !c.GetStatus() {
			broken[c.GetType()] = "reason:" + c.GetReason() + " message:" + c.GetMessage()
		}
	}
	f := &e.nodeFacts
	f.mu.Lock()
	better := f.network != "" && broken[runtimeapi.NetworkReady] == "" || f.runtime != "" && broken[runtimeapi.RuntimeReady] == ""
	same := f.asked && f.network == broken[runtimeapi.NetworkReady] && f.runtime == broken[runtimeapi.RuntimeReady]
	f.asked, f.runtime, f.network = true, broken[runtimeapi.RuntimeReady], broken[runtimeapi.NetworkReady]
	f.mu.Unlock()
	for code, why := range map[health.Code]string{health.RuntimeNotReady: broken[runtimeapi.RuntimeReady], health.RuntimeNetwork: broken[runtimeapi.NetworkReady]} {
		if why == "" {
			e.health.Clear(code, "")
		} else {
			e.health.Set(code, "", why)
		}
	}
	if better && e.ready.Started() {
		e.pool.PokeAll()
	}
	if !same && e.node != nil {
		e.node.Look()
	}
}

// lacksNetwork says why a pod cannot be started: it needs a sandbox with an address, and the runtime has no network. What
// runs is left alone, and so is what lives on the node's network.
func (e *Edged) lacksNetwork(pod *v1.Pod, obs *observed.Pod) error {
	if box := obs.Sandbox(); pod.Spec.HostNetwork || box != nil && box.Ready {
		return nil
	}
	e.nodeFacts.mu.Lock()
	defer e.nodeFacts.mu.Unlock()
	if why := e.nodeFacts.network; why != "" {
		return fmt.Errorf("network is not ready: %w", networkError(why))
	}
	return nil
}

// statusReported is called with each status that the cloud took.
func (e *Edged) statusReported(status *v1.NodeStatus) {
	e.devices.Remember()
	e.csi.ReportedInUse(status.VolumesInUse)
}
