package main

import (
	"context"
	"fmt"
	"time"

	"github.com/edgecore-io/edgecore/test/bench/process"
)

// footprint looks at the agent while nothing happens.
func (b *bench) footprint(ctx context.Context, pods int, memory, cpu string) error {
	say("%d pods, idle for %v", pods, b.idle)
	if !wait(ctx, 25*time.Second) { // reports and relists settle
		return ctx.Err()
	}
	pid := b.agent.PID()
	cpu0, io0, err := process.Usage(pid)
	if err != nil {
		return err
	}
	if !wait(ctx, b.idle) {
		return ctx.Err()
	}
	cpu1, io1, err := process.Usage(pid)
	if err != nil {
		return err
	}
	rss, anon, err := process.Memory(pid)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d pods", pods)
	b.row("RSS (anon), "+name, fmt.Sprintf("%.1f (%.1f) MB", float64(rss)/1e6, float64(anon)/1e6), "", "", memory)
	b.row("CPU, "+name+" idle, % of a core", fmt.Sprintf("%.2f", 100*(cpu1-cpu0).Seconds()/b.idle.Seconds()), "", "",
		cpu)
	b.row("written in "+b.idle.String()+", "+name+" idle", fmt.Sprintf("%d bytes", io1-io0), "0", "", "0")
	return nil
}
