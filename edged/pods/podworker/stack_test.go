package podworker

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestStacks: idle pods do not keep the stacks that their last steps needed.
func TestStacks(t *testing.T) {
	const pods, deep, budget = 200, 64 << 10, 8 << 10
	s := &script{sync: func(context.Context, *v1.Pod) SyncResult {
		useStack(deep >> 10)
		return SyncResult{}
	}}
	run(t, s, func(p *Pool) {
		before := stacks()
		for i := range pods {
			p.Update(pod("p", types.UID(fmt.Sprint(i))), "")
		}
		synctest.Wait()
		if n := len(s.seen()); n != pods {
			t.Fatalf("%d pods were synced, want %d", n, pods)
		}
		if took := (stacks() - before) / pods; took > budget {
			t.Errorf("an idle pod keeps %d bytes of stack after a step with %d, want at most %d", took, deep, budget)
		}
	})
}

// useStack needs a stack of so many KB.
//
//go:noinline
func useStack(kb int) byte {
	var part [1 << 10]byte
	if kb > 0 {
		part[kb] = useStack(kb - 1)
	}
	return part[kb/2]
}

// stacks returns how many bytes stacks take after a collection.
func stacks() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.StackInuse)
}
