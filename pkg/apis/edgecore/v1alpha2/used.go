package v1alpha2

import (
	"bytes"
	"encoding/json"
	"reflect"
)

// The texts of warnings.
const (
	notActedOn = "accepted, but this version does not act on it"
	notThere   = "accepted, but this version does not have this module yet"
)

// live are the keys that this version acts on; a part that makes another one work adds it here, and a test
// of cmd/edgecore fails when one of these changes nothing. A mapping that is named is live as a whole.
//
// podSandboxImage is not one of them: the sandbox's image is a setting of the container runtime.
func live() map[string]bool {
	keys := map[string]bool{
		"apiVersion": true, "kind": true,
		"edgecoreVersion":     true,                             // a note by KubeEdge on the file, for nobody to act on
		"database.driverName": true, "database.aliasName": true, // there is only one driver
		"database.dataSource":        true,
		"modules.metaManager.enable": true,
	}
	for _, k := range []string{"enable", "hostnameOverride", "nodeIP", "rootDirectory", "seccompDefault"} {
		keys["modules.edged."+k] = true
	}
	for _, k := range []string{
		"apiVersion", "kind",
		"staticPodPath", "podLogsDir", "syncFrequency", "fileCheckFrequency", "address", "readOnlyPort",
		"registryPullQPS", "registryBurst", "serializeImagePulls", "maxParallelImagePulls",
		"clusterDomain", "clusterDNS", "resolvConf", "seccompDefault", "oomScoreAdj",
		"cgroupRoot", "cgroupsPerQOS", "cgroupDriver", "cpuCFSQuota", "cpuCFSQuotaPeriod", "podPidsLimit",
		"maxPods", "systemReserved", "kubeReserved", "crashLoopBackOff",
		"containerRuntimeEndpoint", "imageServiceEndpoint", "runtimeRequestTimeout",
	} {
		keys["modules.edged.tailoredKubeletConfig."+k] = true
	}
	return keys
}

// LiveKeys returns the keys that this version acts on, in order. Their own keys are live with them.
func LiveKeys() []string { return sortedKeys(live()) }

// absent are the switches of the modules that this version does not have. To switch one on, even where that
// is the default, is worth a warning: what the file says is on is not.
func absent() map[string]bool {
	keys := map[string]bool{"modules.metaManager.metaServer.enable": true}
	for _, m := range []string{"edgeHub", "eventBus", "serviceBus", "deviceTwin", "dbTest", "edgeStream", "taskManager"} {
		keys["modules."+m+".enable"] = true
	}
	return keys
}

// formerDefaults are the defaults of older KubeEdge versions: a file printed by one of them asks for nothing.
func formerDefaults() map[string]string {
	return map[string]string{
		"modules.deviceTwin.dmiSockPath": "/etc/kubeedge/dmi.sock",
		"modules.edged.podSandboxImage":  "kubeedge/pause:3.1",
	}
}

// unused returns a warning for each key that the tree sets, that KubeEdge acts on, and that this version does
// not. A key that has its default is left in peace: nothing is lost by it. What is compared are values and
// not their spelling: 60s is 1m0s.
func unused(tree any, cfg *EdgeCore) Problems {
	u := &unusedKeys{live: live(), absent: absent(), former: formerDefaults()}
	u.walk("", tree, reflect.ValueOf(cfg).Elem(), reflect.ValueOf(Default()).Elem())
	return u.warnings
}

type unusedKeys struct {
	live, absent map[string]bool
	former       map[string]string
	warnings     Problems
}

func (u *unusedKeys) walk(at string, tree any, value, fallback reflect.Value) {
	if u.live[at] {
		return
	}
	value, fallback = pointed(value), pointed(fallback)
	m, isMap := tree.(map[string]any)
	if t := value.Type(); isMap && t.Kind() == reflect.Struct && !hasOwnForm(t) {
		for _, key := range sortedKeys(m) {
			u.walk(join(at, key), m[key], fieldByKey(value, key), fieldByKey(fallback, key))
		}
		return
	}
	switch former, ok := u.former[at]; {
	case u.absent[at]:
		if value.Bool() {
			u.warnings = append(u.warnings, Problem{Path: at, Text: notThere})
		}
	case ok && value.String() == former, same(value, fallback):
	default:
		u.warnings = append(u.warnings, Problem{Path: at, Text: notActedOn})
	}
}

// pointed follows a pointer to a struct; one that is nil points to a struct that says nothing.
func pointed(v reflect.Value) reflect.Value {
	switch {
	case v.Kind() != reflect.Pointer || v.Type().Elem().Kind() != reflect.Struct || hasOwnForm(v.Type().Elem()):
		return v
	case v.IsNil():
		return reflect.Zero(v.Type().Elem())
	}
	return v.Elem()
}

// fieldByKey finds the field of a JSON key; the tree has only keys that fit.
func fieldByKey(v reflect.Value, key string) reflect.Value {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := bytes.Cut([]byte(f.Tag.Get("json")), []byte(","))
		if string(name) == key {
			return v.Field(i)
		}
		if len(name) == 0 && f.Type.Kind() == reflect.Struct {
			if inner := fieldByKey(v.Field(i), key); inner.IsValid() {
				return inner
			}
		}
	}
	return reflect.Value{}
}

// same compares what two values say: no pointer, an empty list and a zero say the same.
func same(a, b reflect.Value) bool {
	if saysZero(a) && saysZero(b) {
		return true
	}
	x, errX := json.Marshal(a.Interface())
	y, errY := json.Marshal(b.Interface())
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

func saysZero(v reflect.Value) bool {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return true
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Map, reflect.Slice:
		return v.Len() == 0
	}
	return v.IsZero()
}
