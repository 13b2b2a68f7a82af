package prober

import "strings"

// UserAgent returns what HTTP and gRPC probes of a Kubernetes version call themselves: "kube-probe/1.37" for "v1.37.2".
func UserAgent(kubernetes string) string {
	parts := strings.Split(strings.TrimPrefix(kubernetes, "v"), ".")
	return "kube-probe/" + strings.Join(parts[:min(2, len(parts))], ".")
}
