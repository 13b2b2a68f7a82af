package desired

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/keyqueue"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/sessions"
	"github.com/edgecore-io/edgecore/pkg/ratelimit"
)

const (
	// noticeRate and noticeBurst limit the events about withheld pods per second, nodeNoticeRate and nodeNoticeBurst
	// those about the pods of one node. An event that exceeds a limit waits for noticeWait.
	noticeRate, noticeBurst         = 10, 100
	nodeNoticeRate, nodeNoticeBurst = 1, 20
	noticeWait                      = time.Minute
	// noticeRepeat is when an event about a pod is repeated if its node connects again.
	noticeRepeat = time.Hour
	noticesMax   = 4096
)

// podNotices records events about pods that are withheld from nodes that are connected here.
type podNotices struct {
	keyqueue.Queue
	own      kubernetes.Interface
	caches   *caches.Caches
	sessions *sessions.Sessions
	room     *podRoom
	recent   *lru.Cache // of notice; the value is when it was recorded
	rate     *rate.Limiter
	nodes    *ratelimit.Limiter[string]
}

type notice struct {
	uid types.UID
	why withheld
}

func newPodNotices(
	own kubernetes.Interface, caches *caches.Caches, sessions *sessions.Sessions, room *podRoom,
) *podNotices {
	n := &podNotices{
		own:      own,
		caches:   caches,
		sessions: sessions,
		room:     room,
		recent:   lru.New(noticesMax),
		rate:     rate.NewLimiter(noticeRate, noticeBurst),
		nodes:    ratelimit.New[string](nodeNoticeRate, nodeNoticeBurst),
	}
	n.Queue = keyqueue.New("pod", n.sync, "Event about a pod that is withheld from its node not recorded")
	return n
}

// add queues withheld pods.
func (n *podNotices) add(pods []podNeed) {
	for _, p := range pods {
		n.Keys.Add(p.key.Namespace + "/" + p.key.Name + "/" + string(p.uid))
	}
}

func (n *podNotices) sync(ctx context.Context, key string) error {
	namespace, name, uid, err := keyqueue.SplitPodKey(key)
	if err != nil {
		return err
	}
	pod := n.caches.Pod(namespace, name)
	if pod == nil || pod.UID != uid || !n.sessions.ConnectedHere(pod.Spec.NodeName) {
		return nil
	}
	id := notice{uid, n.room.withheldWhy(pod.Spec.NodeName, uid)}
	reason, message := n.eventText(pod, id.why)
	now := time.Now()
	if at, ok := n.recent.Get(id); reason == "" || ok && now.Sub(at.(time.Time)) < noticeRepeat {
		return nil
	}
	if !n.nodes.Of(pod.Spec.NodeName, now).AllowN(now, 1) || !n.rate.AllowN(now, 1) {
		n.Keys.AddAfter(key, noticeWait)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, keyqueue.Timeout)
	defer cancel()
	_, err = n.own.CoreV1().Events(namespace).Create(ctx, noticeEvent(pod, reason, message, now),
		metav1.CreateOptions{})
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) { // its namespace is about to go, or a right is missing
		klog.InfoS("Event of a pod not recorded", "pod", klog.KObj(pod), "reason", reason, "err", err)
		err = nil
	}
	if err == nil {
		n.recent.Add(id, now)
	}
	return err
}

// eventText returns the reason and message of the event; none if the pod is not withheld, or about to go.
func (n *podNotices) eventText(pod *v1.Pod, why withheld) (reason, message string) {
	node, own, shared := pod.Spec.NodeName, n.room.own>>20, n.room.shared>>20
	if pod.DeletionTimestamp != nil {
		return "", ""
	}
	switch why {
	case withheldWaiting:
		return "NodeHasNoRoom", fmt.Sprintf("Node %s does not get this pod of %d KiB yet: its pods may have %d MiB "+
			"together, and %d MiB of each namespace besides. It gets it when there is room: delete other pods there, "+
			"also those that have ended, or make them smaller", node, caches.SizeOf(pod)>>10, shared, own)
	case withheldChange:
		return "PodChangeWithheld", fmt.Sprintf("Node %s keeps running the version of this pod that it has. The "+
			"present one is larger, or may be, and the node's pods have grown beyond %d MiB, with more than an "+
			"equal share of them in this namespace. Make the pods smaller, such as their annotations and labels, "+
			"or delete some", node, shared)
	case withheldReferences:
		return "TooManyReferences", fmt.Sprintf("Node %s does not get this pod, or its changes: it names more than %d "+
			"ConfigMaps and Secrets. Put their data into fewer", node, caches.MaxReferences)
	}
	return "", ""
}

func noticeEvent(pod *v1.Pod, reason, message string, now time.Time) *v1.Event {
	at := metav1.NewTime(now)
	return &v1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", pod.Name, now.UnixNano()), Namespace: pod.Namespace},
		InvolvedObject: v1.ObjectReference{
			APIVersion:      "v1",
			Kind:            "Pod",
			Namespace:       pod.Namespace,
			Name:            pod.Name,
			UID:             pod.UID,
			ResourceVersion: pod.ResourceVersion,
		},
		Type:           v1.EventTypeWarning,
		Reason:         reason,
		Message:        message,
		Count:          1,
		FirstTimestamp: at,
		LastTimestamp:  at,
		Source:         v1.EventSource{Component: "cloudcore"},
	}
}
