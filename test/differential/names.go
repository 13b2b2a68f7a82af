package differential

import (
	"net/netip"
	"regexp"
	"slices"
	"sort"
	"strings"
)

// Names replaces what differs from node to node, or from run to run, by placeholders.
type Names struct {
	// Texts are replaced by their values, longer ones first.
	Texts map[string]string
	// Pods is the network of the node's pods.
	Pods netip.Prefix
	// Services is the network of services. Those of a case are in the node's namespace, with an address by chance.
	Services netip.Prefix
}

// lastFixedService is the last byte of the highest address of a service that is the same in each cluster: the API
// server's is 1, DNS' is 10.
const lastFixedService = 15

var (
	uuids  = regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
	hashes = regexp.MustCompile(`(sha256:)?\b[0-9a-f]{64}\b`)
	times  = regexp.MustCompile(
		`\b\d{4}-\d\d-\d\d[T_ ]\d\d[:_]\d\d[:_]\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?( [+-]\d{4} \w+)?`)
	tokens    = regexp.MustCompile(`\beyJ[\w-]+\.[\w-]+\.[\w-]+`)
	addresses = regexp.MustCompile(`\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b`)
	took      = regexp.MustCompile(`in [0-9.]+(µs|ms|s|m[0-9.]+s) \([0-9.]+(µs|ms|s|m[0-9.]+s) including waiting\)`)
	// accessVolumes are the volumes that the API server adds, each with a random name.
	accessVolumes = regexp.MustCompile(`\bkube-api-access-[a-z0-9]{5}\b`)
	dates         = regexp.MustCompile(`\b\d{4}_\d\d_\d\d_\d\d_\d\d_\d\d\.\d+\b`)
	// terminationLogs are the files of termination messages: a random name, or the number of the attempt.
	terminationLogs = regexp.MustCompile(`(/containers/[^/ ]+/)[0-9a-f]+\b`)
	// clients are addresses of pods, and of processes in them, with a port that the kernel chose.
	clients = regexp.MustCompile(`((?:<address of a pod>|127\.0\.0\.1)\]?):(3[3-9]|4\d|5\d|60)\d{3}\b`)
	// resolverOptions is a line of resolv.conf, whose words the kubelet puts into an order by chance.
	resolverOptions = regexp.MustCompile(`(?m)^options .*$`)
	// randomDevices are the devices of the nodes' device plugins, which are as good as one another.
	randomDevices = regexp.MustCompile(`\brandom-device-\d+\b`)
	versions      = regexp.MustCompile(`resourceVersion=\d+`)
	// used is what pods of other cases, which run meanwhile, have of a resource.
	used = regexp.MustCompile(`\bused: \d+\b`)
)

// Replace returns a text with placeholders.
func (n Names) Replace(text string) string {
	text = took.ReplaceAllString(text, "in <duration>")
	text = dates.ReplaceAllString(text, "<dated folder>")
	text = times.ReplaceAllString(text, "<time>")
	text = tokens.ReplaceAllString(text, "<token>")
	text = n.texts(text)
	text = uuids.ReplaceAllString(text, "<uid>")
	text = accessVolumes.ReplaceAllString(text, "kube-api-access-<x>")
	text = terminationLogs.ReplaceAllString(text, "${1}<attempt>")
	text = resolverOptions.ReplaceAllStringFunc(text, func(line string) string {
		words := strings.Fields(line)
		slices.Sort(words[1:])
		return strings.Join(words, " ")
	})
	text = randomDevices.ReplaceAllString(text, "<device>")
	text = versions.ReplaceAllString(text, "resourceVersion=<n>")
	text = used.ReplaceAllString(text, "used: <n>")
	text = hashes.ReplaceAllStringFunc(text, func(hash string) string {
		if strings.HasPrefix(hash, "sha256:") {
			return hash // a digest, which is the same everywhere
		}
		return "<id>"
	})
	text = addresses.ReplaceAllStringFunc(text, func(address string) string {
		a, err := netip.ParseAddr(address)
		switch {
		case err != nil:
			return address
		case n.Pods.Contains(a):
			return "<address of a pod>"
		case n.Services.Contains(a) && a.As4()[3] > lastFixedService:
			return "<address of a service>"
		}
		return address
	})
	return clients.ReplaceAllString(text, "${1}:<client's port>")
}

func (n Names) texts(text string) string {
	all := make([]string, 0, len(n.Texts))
	for from := range n.Texts {
		all = append(all, from)
	}
	sort.Slice(all, func(i, j int) bool { return len(all[i]) > len(all[j]) })
	for _, from := range all {
		text = strings.ReplaceAll(text, from, n.Texts[from])
	}
	return text
}
