package main

import (
	"fmt"
	"os"
	"slices"
	"time"
)

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "==> "+format+"\n", args...) }

func (b *bench) row(what, ours, floor, ratio, budget string) {
	b.rows = append(b.rows, fmt.Sprintf("| %s | %s | %s | %s | %s |", what, ours, floor, ratio, budget))
	say("%s: %s (floor %s, ratio %s)", what, ours, floor, ratio)
}

// latency adds a row of times beside the floor's.
func (b *bench) latency(what string, ours, floor []time.Duration, budget string) {
	o, f := median(ours), median(floor)
	b.row(what, seconds(o), seconds(f), fmt.Sprintf("%.2fx", float64(o)/float64(f)), budget)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f s", d.Seconds()) }

func median(list []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}
