//go:build tools

// Package runc pins the runc that the tests of user namespaces build and run: Debian's cannot map the ids of mounts. It
// is a module of its own, so that runc's dependencies stay out of edgecore's.
package runc

import _ "github.com/opencontainers/runc"
