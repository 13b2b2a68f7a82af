package main

import (
	"fmt"
	"slices"
	"strings"
)

// target is an architecture: its names with us, in Debian and among compilers, and what the Go tools are told.
type target struct {
	name, debian, triplet string
	env                   []string
	// libc is Debian's package of the C library that is linked in, for those who build elsewhere.
	libc string
}

// allTargets are those that are built. The processors are the oldest of their kind: armv7 with a floating point unit
// (Raspberry Pi 2 and newer), arm64 and amd64 as they were at first.
func allTargets() []target {
	return []target{
		{
			name:    "amd64",
			debian:  "amd64",
			triplet: "x86_64-linux-gnu",
			env:     []string{"GOARCH=amd64", "GOAMD64=v1"},
			libc:    "libc6-dev-amd64-cross",
		},
		{
			name:    "arm64",
			debian:  "arm64",
			triplet: "aarch64-linux-gnu",
			env:     []string{"GOARCH=arm64", "GOARM64=v8.0"},
			libc:    "libc6-dev-arm64-cross",
		},
		{
			name:    "armv7",
			debian:  "armhf",
			triplet: "arm-linux-gnueabihf",
			env:     []string{"GOARCH=arm", "GOARM=7"},
			libc:    "libc6-dev-armhf-cross",
		},
	}
}

// targetsOf are those that are named, each by any of its names; all without a name.
func targetsOf(names []string) ([]target, error) {
	all := allTargets()
	if len(names) == 0 {
		return all, nil
	}
	var list []target
	for _, name := range names {
		i := slices.IndexFunc(all, func(t target) bool { return t.name == name || t.debian == name })
		if i < 0 {
			var known []string
			for _, t := range all {
				known = append(known, t.name)
			}
			return nil, fmt.Errorf("unknown architecture %q: want %s", name, strings.Join(known, ", "))
		}
		list = append(list, all[i])
	}
	return list, nil
}
