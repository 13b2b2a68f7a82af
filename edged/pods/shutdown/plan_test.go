package shutdown

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
)

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

func TestGroupsOf(t *testing.T) {
	for name, c := range map[string]struct {
		config kubeletconfig.KubeletConfiguration
		want   []Group
	}{
		"nothing": {kubeletconfig.KubeletConfiguration{}, nil},
		"two times": {kubeletconfig.KubeletConfiguration{
			ShutdownGracePeriod:             metav1.Duration{Duration: seconds(30)},
			ShutdownGracePeriodCriticalPods: metav1.Duration{Duration: seconds(10)},
		}, []Group{{0, seconds(20)}, {systemCritical, seconds(10)}}},
		"by priority": {
			kubeletconfig.KubeletConfiguration{
				ShutdownGracePeriodByPodPriority: []kubeletconfig.ShutdownGracePeriodByPodPriority{
					{Priority: 100, ShutdownGracePeriodSeconds: 5}, {Priority: -3, ShutdownGracePeriodSeconds: 7},
				},
			}, []Group{{-3, seconds(7)}, {100, seconds(5)}},
		},
	} {
		if diff := cmp.Diff(c.want, GroupsOf(&c.config)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func pod(name string, priority *int32, grace int64) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
		}, Spec: v1.PodSpec{Priority: priority, TerminationGracePeriodSeconds: &grace},
	}
}

func TestAssign(t *testing.T) {
	groups := []Group{{0, seconds(20)}, {100, seconds(5)}, {systemCritical, seconds(10)}}
	pods := []*v1.Pod{
		pod("none", nil, 30), pod("low", ptr.To[int32](-5), 30), pod("zero", ptr.To[int32](0), 30),
		pod("99", ptr.To[int32](99), 30),
		pod("100", ptr.To[int32](100), 2), pod("critical", ptr.To[int32](systemCritical), 30),
		pod("node", ptr.To[int32](systemCritical+1000), 30),
	}
	var got []string
	for _, b := range Assign(groups, pods) {
		line := fmt.Sprint(b.Grace)
		for _, p := range b.Pods {
			line += fmt.Sprintf(" %s=%v", p.Name, graceOf(p, b.Grace))
		}
		got = append(got, line)
	}
	want := "20s none=20s low=20s zero=20s 99=20s\n5s 100=2s\n10s critical=10s node=10s"
	if diff := cmp.Diff(want, strings.Join(got, "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFit(t *testing.T) {
	groups := []Group{{0, seconds(20)}, {100, seconds(10)}}
	if diff := cmp.Diff(groups, fit(groups, seconds(30))); diff != "" {
		t.Errorf("groups that fit mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Group{{0, seconds(10)}, {100, seconds(5)}}, fit(groups, seconds(15))); diff != "" {
		t.Errorf("groups with half the time mismatch (-want +got):\n%s", diff)
	}
	if groups[0].Grace != seconds(20) {
		t.Errorf("fit changed the grace of its argument to %v, want %v", groups[0].Grace, seconds(20))
	}
}
