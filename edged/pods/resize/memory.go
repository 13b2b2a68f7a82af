package resize

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// Decrease is a limit of memory that is to be lowered: a container's, or with the name Whole the pod's.
type Decrease struct {
	Name string
	// Limit is the new one, in bytes.
	Limit int64
	// Used is the memory in use now, in bytes; nil when it is not known.
	Used *uint64
}

// Decreases reports whether a limit of memory is lower than the one before, or the first one. 0 is no limit.
func Decreases(before, now int64) bool { return now != 0 && (before == 0 || now < before) }

// MemoryLimit is the limit of memory among some amounts, in bytes; 0 where there is none.
func MemoryLimit(r v1.ResourceRequirements) int64 { return r.Limits.Memory().Value() }

// CheckMemory refuses to lower limits of memory below what is in use: the kernel would kill processes.
func CheckMemory(list []Decrease) error {
	var errs []error
	for _, d := range list {
		what := "pod"
		if d.Name != Whole {
			what = fmt.Sprintf("container %q", d.Name)
		}
		switch {
		case d.Used == nil:
			errs = append(errs, fmt.Errorf("missing %s memory usage", what))
		case *d.Used >= uint64(max(d.Limit, 0)):
			errs = append(errs, fmt.Errorf("attempting to set %s memory limit (%d) "+belowUsage+"%d)",
				what, d.Limit, *d.Used))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("cannot decrease memory limits: %w", utilerrors.NewAggregate(errs))
}

// belowUsage is what stands before the memory in use in an error of CheckMemory.
const belowUsage = "below current usage ("

// SameFailure reports whether two messages tell of the same failure, which is tried again and again: the memory in use
// is another each time.
func SameFailure(a, b string) bool { return withoutUsage(a) == withoutUsage(b) }

// withoutUsage is a message without how much memory was in use.
func withoutUsage(message string) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(message, belowUsage)
		out.WriteString(before)
		if !found {
			return out.String()
		}
		out.WriteString(belowUsage)
		message = strings.TrimLeft(after, "0123456789")
	}
}
