package source

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// probes checks the probes of a container as the API server does. Which containers may have any is checked with
// lifecycles.
func (v *validator) probes(p *field.Path, c *v1.Container) {
	for _, probe := range []struct {
		name      string
		spec      *v1.Probe
		readiness bool
	}{
		{"livenessProbe", c.LivenessProbe, false}, {"readinessProbe", c.ReadinessProbe, true},
		{"startupProbe", c.StartupProbe, false},
	} {
		if probe.spec == nil {
			continue
		}
		at := p.Child(probe.name)
		v.probe(at, probe.spec)
		if probe.readiness && probe.spec.TerminationGracePeriodSeconds != nil {
			v.add(field.Invalid(at.Child("terminationGracePeriodSeconds"), *probe.spec.TerminationGracePeriodSeconds,
				"must not be set for readinessProbes"))
		}
		if !probe.readiness && probe.spec.SuccessThreshold != 1 {
			v.add(field.Invalid(at.Child("successThreshold"), probe.spec.SuccessThreshold, "must be 1"))
		}
	}
}

func (v *validator) probe(p *field.Path, probe *v1.Probe) {
	for _, n := range []struct {
		name  string
		value int32
	}{
		{"initialDelaySeconds", probe.InitialDelaySeconds}, {"timeoutSeconds", probe.TimeoutSeconds},
		{"periodSeconds", probe.PeriodSeconds},
		{"successThreshold", probe.SuccessThreshold}, {"failureThreshold", probe.FailureThreshold},
	} {
		if n.value < 0 {
			v.add(field.Invalid(p.Child(n.name), n.value, "must not be negative"))
		}
	}
	if g := probe.TerminationGracePeriodSeconds; g != nil && *g <= 0 {
		v.add(field.Invalid(p.Child("terminationGracePeriodSeconds"), *g, "must be greater than 0"))
	}
	handlers := 0
	if probe.Exec != nil {
		handlers++
		if len(probe.Exec.Command) == 0 {
			v.add(field.Required(p.Child("exec", "command"), ""))
		}
	}
	if probe.HTTPGet != nil {
		handlers++
		oneOf(v, p.Child("httpGet", "scheme"), probe.HTTPGet.Scheme, v1.URISchemeHTTP, v1.URISchemeHTTPS)
		v.port(p.Child("httpGet", "port"), probe.HTTPGet.Port)
		for i, h := range probe.HTTPGet.HTTPHeaders {
			at := p.Child("httpGet", "httpHeaders").Index(i).Child("name")
			v.collect(at, h.Name, validation.IsHTTPHeaderName(h.Name))
		}
	}
	if probe.TCPSocket != nil {
		handlers++
		v.port(p.Child("tcpSocket", "port"), probe.TCPSocket.Port)
	}
	if probe.GRPC != nil {
		handlers++
		v.port(p.Child("grpc", "port"), intstr.FromInt32(probe.GRPC.Port))
	}
	switch {
	case handlers == 0:
		v.add(field.Required(p, "must specify a handler type"))
	case handlers > 1:
		v.add(field.Forbidden(p, "may not specify more than 1 handler type"))
	}
}

// port checks a port, which may be the name of one.
func (v *validator) port(p *field.Path, port intstr.IntOrString) {
	if port.Type == intstr.Int {
		v.collect(p, port.IntValue(), validation.IsValidPortNum(port.IntValue()))
		return
	}
	v.collect(p, port.StrVal, validation.IsValidPortName(port.StrVal))
}
