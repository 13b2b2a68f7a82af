package edged

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type eventList []string

func (l *eventList) ReportEvent(_ context.Context, e *v1.Event, again bool) error {
	*l = append(*l, fmt.Sprint(e.Name, " ", e.Count, " ", again))
	return nil
}

// TestRepeatedEvents: told when the count doubles, and when it is long since.
func TestRepeatedEvents(t *testing.T) {
	var l eventList
	r := newEventReporter(&l, EventOptions{Enable: true})
	event := v1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}}
	now := time.Unix(0, 0)
	for range 20 {
		event.Count++
		now = now.Add(time.Second)
		r.tell(t.Context(), &event, now)
	}
	event.Count++
	r.tell(t.Context(), &event, now.Add(time.Hour))
	want := eventList{"e 1 false", "e 2 true", "e 4 true", "e 8 true", "e 16 true", "e 21 true"}
	if diff := cmp.Diff(want, l); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	for i := range 2 * eventsTold {
		r.tell(t.Context(), &v1.Event{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}, Count: 1}, now.Add(time.Duration(i)))
	}
	if len(r.told) > eventsTold {
		t.Errorf("%d are remembered", len(r.told))
	}
}

// TestWhichEventsAreTaken: none when they are off, none of static pods, and no more than the rate.
func TestWhichEventsAreTaken(t *testing.T) {
	pod, static := &v1.Pod{}, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"kubernetes.io/config.source": "file"}}}
	for _, c := range []struct {
		opts EventOptions
		pod  *v1.Pod
		want int
	}{
		{EventOptions{}, pod, 0}, {EventOptions{Enable: true}, static, 0}, {EventOptions{Enable: true}, pod, 10},
		{EventOptions{Enable: true, QPS: 0.001, Burst: 3}, pod, 3},
	} {
		r := newEventReporter(nil, c.opts)
		for range 10 {
			r.take(v1.Event{}, c.pod)
		}
		if got := len(r.waiting); got != c.want {
			t.Errorf("%+v: %d are taken, want %d", c.opts, got, c.want)
		}
	}
}
