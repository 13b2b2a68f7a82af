package env

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// master is the service of the API server, whose variables every pod gets.
const master = "kubernetes"

// serviceVar is an environment variable that describes a service.
type serviceVar struct{ name, value string }

// serviceVars are the service variables of a pod: for the services of its namespace, unless enableServiceLinks is
// false, and for the API server's. A service without an address has none ("headless").
func serviceVars(pod *v1.Pod, services []v1.Service) []serviceVar {
	links := pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
	byName := map[string]*v1.Service{}
	for i := range services {
		s := &services[i]
		api := s.Namespace == v1.NamespaceDefault && s.Name == master
		own := links && s.Namespace == pod.Namespace
		if len(s.Name) > validation.DNS1035LabelMaxLength || len(s.Spec.Ports) == 0 || !api && !own {
			continue
		}
		if _, err := netip.ParseAddr(s.Spec.ClusterIP); err != nil {
			continue // headless, external, or not from an API server
		}
		if byName[s.Name] == nil || own { // a service of the pod's own namespace goes before the API's
			byName[s.Name] = s
		}
	}
	names := make([]string, 0, len(byName))
	for name := range byName {
		names = append(names, name)
	}
	slices.Sort(names)
	var vars []serviceVar
	for _, name := range names {
		vars = append(vars, varsOf(byName[name])...)
	}
	return vars
}

// varsOf are the variables of one service: those of Kubernetes, and the links that Docker once made.
func varsOf(s *v1.Service) []serviceVar {
	prefix, ip := varName(s.Name), s.Spec.ClusterIP
	first := s.Spec.Ports[0]
	vars := []serviceVar{{prefix + "_SERVICE_HOST", ip}, {prefix + "_SERVICE_PORT", port(first)}}
	for _, p := range s.Spec.Ports {
		if p.Name != "" {
			vars = append(vars, serviceVar{prefix + "_SERVICE_PORT_" + varName(p.Name), port(p)})
		}
	}
	for i, p := range s.Spec.Ports {
		protocol := string(v1.ProtocolTCP)
		if p.Protocol != "" {
			protocol = string(p.Protocol)
		}
		url := fmt.Sprintf("%s://%s", strings.ToLower(protocol), net.JoinHostPort(ip, port(p)))
		if i == 0 {
			vars = append(vars, serviceVar{prefix + "_PORT", url})
		}
		link := fmt.Sprintf("%s_PORT_%d_%s", prefix, p.Port, strings.ToUpper(protocol))
		vars = append(vars, serviceVar{link, url}, serviceVar{link + "_PROTO", strings.ToLower(protocol)},
			serviceVar{link + "_PORT", port(p)}, serviceVar{link + "_ADDR", ip})
	}
	return vars
}

func port(p v1.ServicePort) string { return strconv.Itoa(int(p.Port)) }

// varName makes the name of a variable of the name of an object.
func varName(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }
