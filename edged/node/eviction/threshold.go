package eviction

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Signal is what a threshold is about, in the kubelet's words.
type Signal string

// The signals, in the order in which they are acted upon: without memory nothing else can be done.
const (
	Memory            Signal = "memory.available"
	AllocatableMemory Signal = "allocatableMemory.available"
	NodeFS            Signal = "nodefs.available"
	NodeFSInodes      Signal = "nodefs.inodesFree"
	ImageFS           Signal = "imagefs.available"
	ImageFSInodes     Signal = "imagefs.inodesFree"
	ContainerFS       Signal = "containerfs.available"
	ContainerFSInodes Signal = "containerfs.inodesFree"
	PIDs              Signal = "pid.available"
)

// resources in messages that are not resources of the API.
const (
	resourceInodes v1.ResourceName = "inodes"
	resourcePIDs   v1.ResourceName = "pids"
)

var order = []Signal{
	Memory, AllocatableMemory, NodeFS, NodeFSInodes, ImageFS, ImageFSInodes, ContainerFS, ContainerFSInodes, PIDs,
}

// Resource is what a signal is short of, in the words of messages.
func (s Signal) Resource() v1.ResourceName {
	switch s {
	case Memory, AllocatableMemory:
		return v1.ResourceMemory
	case NodeFS, ImageFS, ContainerFS:
		return v1.ResourceEphemeralStorage
	case NodeFSInodes, ImageFSInodes, ContainerFSInodes:
		return resourceInodes
	}
	return resourcePIDs
}

// Condition is the condition of the Node while a threshold of the signal is met.
func (s Signal) Condition() v1.NodeConditionType {
	switch s.Resource() {
	case v1.ResourceMemory:
		return v1.NodeMemoryPressure
	case resourcePIDs:
		return v1.NodePIDPressure
	}
	return v1.NodeDiskPressure
}

// format is how amounts of a signal are written.
func (s Signal) format() resource.Format {
	switch s.Resource() {
	case v1.ResourceMemory, v1.ResourceEphemeralStorage:
		return resource.BinarySI
	}
	return resource.DecimalSI
}

// Value is an amount, or a share of the capacity.
type Value struct {
	Amount  int64
	Percent float64
}

// Of is the amount that a value is of a capacity.
func (v Value) Of(capacity int64) int64 {
	if v.Percent > 0 {
		return int64(float64(capacity) * v.Percent / 100)
	}
	return v.Amount
}

func (v Value) zero() bool { return v.Amount <= 0 && v.Percent <= 0 }

// Threshold is met while less is available than its value.
type Threshold struct {
	Signal Signal
	Value  Value
	// Soft ones are acted upon only when they were met for Grace.
	Soft  bool
	Grace time.Duration
	// MinReclaim is how much more than Value has to be available before a threshold that was met is met no more.
	MinReclaim Value
}

// key names a threshold: there is one hard and one soft one of a signal.
type key struct {
	signal Signal
	soft   bool
}

func (t *Threshold) key() key { return key{t.Signal, t.Soft} }

// Settings are the keys of the configuration.
type Settings struct {
	Hard, Soft, SoftGrace, MinReclaim map[string]string
	// PodsLimited: the memory of all pods together has a limit, and what is hard for the node's memory is for that too.
	PodsLimited bool
}

// Parse makes the thresholds of a configuration, in the order of the signals and hard ones first. A value of 0% or 100%
// switches a threshold off.
func Parse(s Settings) ([]Threshold, error) {
	var list []Threshold
	add := func(values map[string]string, soft bool) error {
		for signal, text := range values {
			t := Threshold{Signal: Signal(signal), Soft: soft}
			if !slices.Contains(order, t.Signal) {
				return fmt.Errorf("%q is not an eviction signal; want one of %v", signal, order)
			}
			var err error
			if t.Value, err = parseValue(text); err != nil {
				return fmt.Errorf("threshold of %s: %w", signal, err)
			}
			if t.Value.Percent >= 100 || t.Value.zero() {
				continue
			}
			if soft {
				if t.Grace, err = time.ParseDuration(s.SoftGrace[signal]); err != nil {
					return fmt.Errorf("soft threshold of %s needs a grace period: %w", signal, err)
				}
			}
			if least, ok := s.MinReclaim[signal]; ok {
				if t.MinReclaim, err = parseValue(least); err != nil {
					return fmt.Errorf("minimum reclaim of %s: %w", signal, err)
				}
			}
			list = append(list, t)
		}
		return nil
	}
	if err := add(s.Hard, false); err != nil {
		return nil, err
	}
	if err := add(s.Soft, true); err != nil {
		return nil, err
	}
	if s.PodsLimited {
		list = withPods(list)
	}
	smallsort.SortFunc(list, func(a, b Threshold) int { return compareKeys(a.key(), b.key()) })
	return list, nil
}

// withPods adds for the memory of all pods what is hard for that of the node.
func withPods(list []Threshold) []Threshold {
	if slices.ContainsFunc(list, func(t Threshold) bool { return t.key() == key{AllocatableMemory, false} }) {
		return list
	}
	for _, t := range list {
		if (t.key() == key{Memory, false}) {
			t.Signal = AllocatableMemory
			return append(list, t)
		}
	}
	return list
}

func compareKeys(a, b key) int {
	if d := slices.Index(order, a.signal) - slices.Index(order, b.signal); d != 0 {
		return d
	}
	switch {
	case a.soft == b.soft:
		return 0
	case a.soft:
		return 1
	}
	return -1
}

func parseValue(text string) (Value, error) {
	if percent, ok := strings.CutSuffix(text, "%"); ok {
		p, err := strconv.ParseFloat(percent, 64)
		if err != nil || math.IsNaN(p) || p < 0 || p > 100 {
			return Value{}, fmt.Errorf("%q is not a percentage from 0%% to 100%%", text)
		}
		return Value{Percent: p}, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 {
		return Value{}, fmt.Errorf("%q is neither a quantity, such as 100Mi, nor a percentage", text)
	}
	return Value{Amount: q.Value()}, nil
}

// Reserved is what the hard thresholds keep from pods, as part of the capacity that is not allocatable.
func Reserved(thresholds []Threshold, capacity v1.ResourceList) map[string]string {
	out := map[string]string{}
	for _, t := range thresholds {
		if t.Soft || t.Signal != Memory && t.Signal != NodeFS {
			continue
		}
		name := t.Signal.Resource()
		if have, ok := capacity[name]; ok {
			out[string(name)] = strconv.FormatInt(t.Value.Of(have.Value()), 10)
		}
	}
	return out
}
