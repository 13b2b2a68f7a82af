package source

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What the API server would refuse of hooks, restart policies, probes' grace and deadlines.

// maxRestartRules and maxRestartCodes bound the rules of a container, and the exit codes of a rule.
const (
	maxRestartRules = 20
	maxRestartCodes = 255
)

// podDeadline checks activeDeadlineSeconds, and refuses containers that only the API can add.
func (v *validator) podDeadline(p *field.Path, spec *v1.PodSpec) {
	if d := spec.ActiveDeadlineSeconds; d != nil && *d < 1 {
		v.add(field.Invalid(p.Child("activeDeadlineSeconds"), *d, "must be above 0"))
	}
	if len(spec.EphemeralContainers) > 0 {
		v.add(field.Forbidden(p.Child("ephemeralContainers"),
			"a static pod has none: they are added to a pod through the API"))
	}
}

// lifecycle checks the hooks of a container and how it restarts.
func (v *validator) lifecycle(p *field.Path, c *v1.Container, spec *v1.PodSpec, init bool) {
	sidecar := init && c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
	if c.RestartPolicy != nil {
		oneOf(v, p.Child("restartPolicy"), *c.RestartPolicy, v1.ContainerRestartPolicyAlways,
			v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyNever)
	}
	v.restartRules(p.Child("restartPolicyRules"), c)
	if init && !sidecar {
		for name, set := range map[string]bool{
			"lifecycle": c.Lifecycle != nil, "livenessProbe": c.LivenessProbe != nil,
			"readinessProbe": c.ReadinessProbe != nil, "startupProbe": c.StartupProbe != nil,
		} {
			if set {
				v.add(field.Forbidden(p.Child(name), "only for init containers with restartPolicy: Always"))
			}
		}
		return
	}
	l := c.Lifecycle
	if l == nil {
		return
	}
	grace := int64(v1.DefaultTerminationGracePeriodSeconds)
	if g := spec.TerminationGracePeriodSeconds; g != nil {
		grace = *g
	}
	v.handler(p.Child("lifecycle", "postStart"), l.PostStart, grace)
	v.handler(p.Child("lifecycle", "preStop"), l.PreStop, grace)
	if l.StopSignal != nil && (spec.OS == nil || spec.OS.Name == "") {
		v.add(field.Forbidden(p.Child("lifecycle", "stopSignal"), "needs spec.os.name"))
	}
}

func (v *validator) handler(p *field.Path, h *v1.LifecycleHandler, grace int64) {
	if h == nil {
		return
	}
	kinds := 0
	for _, set := range []bool{h.Exec != nil, h.HTTPGet != nil, h.TCPSocket != nil, h.Sleep != nil} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		v.add(field.Invalid(p, kinds, "one of exec, httpGet, tcpSocket and sleep is needed"))
	}
	if h.Exec != nil && len(h.Exec.Command) == 0 {
		v.add(field.Required(p.Child("exec", "command"), ""))
	}
	if h.HTTPGet != nil {
		if port := h.HTTPGet.Port; port.StrVal == "" {
			v.collect(p.Child("httpGet", "port"), port.IntVal, validation.IsValidPortNum(port.IntValue()))
		}
		oneOf(v, p.Child("httpGet", "scheme"), h.HTTPGet.Scheme, v1.URISchemeHTTP, v1.URISchemeHTTPS)
	}
	if h.Sleep != nil && (h.Sleep.Seconds < 0 || h.Sleep.Seconds > grace) {
		v.add(field.Invalid(p.Child("sleep", "seconds"), h.Sleep.Seconds,
			"must not be negative, nor above terminationGracePeriodSeconds"))
	}
}

func (v *validator) restartRules(p *field.Path, c *v1.Container) {
	if len(c.RestartPolicyRules) == 0 {
		return
	}
	if c.RestartPolicy == nil {
		v.add(field.Required(p, "rules need the container's own restartPolicy beside them"))
	}
	if n := len(c.RestartPolicyRules); n > maxRestartRules {
		v.add(field.TooMany(p, n, maxRestartRules))
	}
	for i, r := range c.RestartPolicyRules {
		at := p.Index(i)
		oneOf(v, at.Child("action"), r.Action, v1.ContainerRestartRuleActionRestart,
			v1.ContainerRestartRuleActionRestartAllContainers)
		if r.ExitCodes == nil {
			v.add(field.Required(at.Child("exitCodes"), ""))
			continue
		}
		oneOf(v, at.Child("exitCodes", "operator"), r.ExitCodes.Operator, v1.ContainerRestartRuleOnExitCodesOpIn,
			v1.ContainerRestartRuleOnExitCodesOpNotIn)
		if n := len(r.ExitCodes.Values); n < 1 || n > maxRestartCodes {
			v.add(field.Invalid(at.Child("exitCodes", "values"), n, "between 1 and 255 exit codes are needed"))
		}
	}
}
