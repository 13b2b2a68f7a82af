package runtime

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/runtimelimit"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// limitedTo2 makes a fixture whose runtime works on two calls at once.
func limitedTo2(t *testing.T) *fixture {
	g := newDirectRig(t)
	g.Runtime.client = limitedBy(runtimelimit.New(1), g.client)
	return g
}

func podNumber(n int) *v1.Pod {
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	pod.Name, pod.UID = fmt.Sprintf("pod-%d", n), types.UID(fmt.Sprintf("uid-%d", n))
	return pod
}

// ownedBy is the context that the pod's worker has.
func ownedBy(t *testing.T, pod *v1.Pod) context.Context {
	return runtimelimit.WithOwner(t.Context(), runtimelimit.OwnerOf(pod.UID, pod))
}

// slowImages has the images of some pods take an hour.
type slowImages struct {
	presentImages
	slow map[types.UID]bool
}

func (s slowImages) EnsureImage(
	ctx context.Context, pod *v1.Pod, c *v1.Container, secrets []v1.Secret, box *runtimeapi.PodSandboxConfig,
) (string, *observed.Reason, time.Time) {
	if s.slow[pod.UID] {
		time.Sleep(time.Hour)
	}
	return s.presentImages.EnsureImage(ctx, pod, c, secrets, box)
}

func TestPullsTakeNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := limitedTo2(t)
		images := slowImages{slow: map[types.UID]bool{}}
		g.opts.Images = images
		var wg sync.WaitGroup
		began := time.Now()
		for n := range 5 {
			images.slow[podNumber(n).UID] = true
		}
		for n := range 5 {
			pod := podNumber(n)
			wg.Go(func() {
				in := SyncInput{Pod: pod, Observed: &observed.Pod{UID: pod.UID, Detailed: true}}
				if res := g.SyncPod(ownedBy(t, pod), in); res.Err != nil {
					t.Errorf("start of %s: %v", pod.Name, res.Err)
				}
			})
		}
		synctest.Wait()
		pod := podNumber(9)
		res := g.SyncPod(ownedBy(t, pod), SyncInput{Pod: pod, Observed: &observed.Pod{UID: pod.UID, Detailed: true}})
		if took := time.Since(began); res.Err != nil || took > 0 {
			t.Errorf("a pod started after %v, %v, while others pull images; want at once", took, res.Err)
		}
		wg.Wait()
	})
}

func TestGracePeriodsDelayNoStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := limitedTo2(t)
		var wg sync.WaitGroup
		for n := range 5 {
			pod := podNumber(n)
			obs := g.syncUntilSteady(pod)
			g.fake.SetDeaf(obs.Containers[0].ID)
			wg.Go(func() {
				if err := g.KillPod(ownedBy(t, pod), pod.UID, pod, obs, new(int64(30))); err != nil {
					t.Errorf("end of %s: %v", pod.Name, err)
				}
			})
		}
		began := time.Now()
		synctest.Wait()
		pod := podNumber(9)
		res := g.SyncPod(ownedBy(t, pod), SyncInput{Pod: pod, Observed: &observed.Pod{UID: pod.UID, Detailed: true}})
		if took := time.Since(began); res.Err != nil || took > time.Second {
			t.Errorf("a pod started after %v, %v, while others end within 30 s; want less than a second", took, res.Err)
		}
		wg.Wait()
		if took := time.Since(began); took < 30*time.Second || took > 32*time.Second {
			t.Errorf("five pods ended within 30 s each after %v, want them side by side", took)
		}
	})
}

func TestWaitEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newDirectRig(t)
		limiter := runtimelimit.New(1)
		g.Runtime.client = limitedBy(limiter, g.client)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				_ = limiter.Do(t.Context(), runtimelimit.StartContainer, func() error {
					time.Sleep(time.Second)
					return nil
				})
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := g.Runtime.client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{})
		if status.Code(err) != codes.Canceled || len(g.fake.Calls("RunPodSandbox")) > 0 {
			t.Errorf("RunPodSandbox = %v, want Canceled and no call", err)
		}
		wg.Wait()
	})
}
