package v1alpha2

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// NodeIPs returns the addresses of nodeIP that can be a node's, with a comma between; the others are ignored, with a
// warning from Load. "::" or "0.0.0.0" alone choose the family of an address that is detected.
func NodeIPs(nodeIP string) string {
	var usable []string
	parts := addressParts(nodeIP)
	for _, part := range parts {
		if notOfANode(part, len(parts)) == "" {
			usable = append(usable, part)
		}
	}
	return strings.Join(usable, ",")
}

// ClusterDNS returns the servers of clusterDNS that pods can reach; the others are ignored, with a warning from Load.
func ClusterDNS(servers []string) []string {
	var usable []string
	for _, server := range servers {
		if !hasZone(server) {
			usable = append(usable, server)
		}
	}
	return usable
}

// ignoredAddresses warns of addresses that are ignored. They are no errors: a device whose configuration worked with
// an older version must not be left without its agent.
func ignoredAddresses(root map[string]any) (warnings Problems) {
	nodeIP, _ := strict.At(root, "modules", "edged", "nodeIP").(string)
	parts := addressParts(nodeIP)
	for _, part := range parts {
		if why := notOfANode(part, len(parts)); why != "" {
			warnings = append(warnings, Problem{
				Path: "modules.edged.nodeIP",
				Text: fmt.Sprintf("%s is ignored: %s; want an address by which other nodes reach this one, or none, "+
					"and the address is detected", strict.Clip(part), why),
			})
		}
	}
	servers, _ := strict.At(root, "modules", "edged", "tailoredKubeletConfig", "clusterDNS").([]any)
	for i, value := range servers {
		if server, ok := value.(string); ok && hasZone(server) {
			warnings = append(warnings, Problem{
				Path: fmt.Sprintf("modules.edged.tailoredKubeletConfig.clusterDNS[%d]", i),
				Text: fmt.Sprintf("%s is ignored: its zone names an interface of this node, and pods have others; "+
					"want an IP address without a zone", strict.Clip(server)),
			})
		}
	}
	return warnings
}

func addressParts(list string) []string {
	parts := strings.Split(list, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// notOfANode says why one of several addresses cannot be a node's, "" for one that can, or that is not an address.
func notOfANode(text string, several int) string {
	addr, err := netip.ParseAddr(text)
	addr = addr.Unmap()
	switch {
	case err != nil:
		return ""
	case addr.IsLoopback():
		return "it is a loopback address"
	case addr.IsMulticast():
		return "it is a multicast address"
	case addr.IsLinkLocalUnicast() || addr.Zone() != "":
		return "it is an address of one link"
	case addr.IsUnspecified() && several > 1:
		return "0.0.0.0 and :: stand alone"
	}
	return ""
}

func hasZone(text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && addr.Zone() != ""
}
