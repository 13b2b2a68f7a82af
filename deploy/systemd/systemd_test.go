package systemd

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// inPackage reads the unit as the package has it.
func inPackage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(Name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestUnit(t *testing.T) {
	if diff := cmp.Diff(inPackage(t), Unit("/usr/bin/edgecore", "/etc/edgecore/edgecore.yaml")); diff != "" {
		t.Errorf("unit with the package's paths (-want +got):\n%s", diff)
	}
	for want, paths := range map[string][2]string{
		"\nExecStart=/opt/e --config /c.yaml\n":             {"/opt/e", "/c.yaml"},
		"\nExecStart=\"/a b/e\" --config /100%%/$$c.yaml\n": {"/a b/e", "/100%/$c.yaml"},
		"\nExecStart=/e --config \"/\\\"c\\\\\"\n":          {"/e", `/"c\`},
	} {
		got := Unit(paths[0], paths[1])
		if !strings.Contains(got, want) {
			t.Errorf("unit for %v, want %q in it:\n%s", paths, want, got)
		}
		if !IsOurs(got) {
			t.Errorf("IsOurs of the unit for %v = false, want true", paths)
		}
	}
	if IsOurs("[Unit]\nDescription=edgecore.service\n") {
		t.Error("IsOurs of KubeEdge's unit = true, want false")
	}
}

// settings are those of the unit's section [Service].
func settings(t *testing.T) map[string]string {
	t.Helper()
	_, section, _ := strings.Cut(inPackage(t), "[Service]\n")
	section, _, _ = strings.Cut(section, "\n[Install]")
	list := map[string]string{}
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if _, again := list[key]; !ok || again {
			t.Fatalf("line %q, want a setting with =, once", line)
		}
		list[key] = value
	}
	return list
}

func TestPodsOutliveTheAgent(t *testing.T) {
	have := settings(t)
	for key, want := range map[string]string{
		"Type": "notify", "Restart": "always", "KillMode": "process", "OOMScoreAdjust": "-999", "LimitCORE": "0",
	} {
		if have[key] != want {
			t.Errorf("%s=%s, want %s", key, have[key], want)
		}
	}
	for _, key := range []string{"WatchdogSec", "LogRateLimitBurst", "SystemCallFilter", "CapabilityBoundingSet",
		"MemoryDenyWriteExecute"} {
		if have[key] == "" {
			t.Errorf("%s = %q, want it set", key, have[key])
		}
	}
	for _, want := range []string{
		"WantedBy=multi-user.target", "StartLimitIntervalSec=0",
		"After=containerd.service crio.service local-fs.target",
	} {
		if !strings.Contains(inPackage(t), "\n"+want+"\n") {
			t.Errorf("unit, want %s in it:\n%s", want, inPackage(t))
		}
	}
	if strings.Contains(inPackage(t), "network-online") {
		t.Errorf("the unit names network-online, want it to start without the network:\n%s", inPackage(t))
	}
}

// TestMountsReachTheHost: each of these gives a service mounts of its own, in which its volumes would stay; or takes
// something that pods' volumes need. See systemd.exec(5).
func TestMountsReachTheHost(t *testing.T) {
	for key := range settings(t) {
		for _, bad := range []string{"Protect", "Private", "ReadOnly", "ReadWrite", "Inaccessible", "NoExecPaths",
			"ExecPaths", "TemporaryFileSystem",
			"Bind", "Mount", "Root", "LogNamespace", "DynamicUser", "ProcSubset", "RestrictSUIDSGID", "Device", "User",
			"UMask", "StateDirectory", "RuntimeDirectory"} {
			if strings.HasPrefix(key, bad) {
				t.Errorf("%s is set, want nothing that begins with %s", key, bad)
			}
		}
	}
	for _, needed := range []string{"CAP_SYS_ADMIN", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID",
		"CAP_KILL", "CAP_LINUX_IMMUTABLE", "CAP_MKNOD", "CAP_NET_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
		"CAP_SETUID", "CAP_SETGID"} {
		if caps := settings(t)["CapabilityBoundingSet"]; !strings.HasPrefix(caps, "~") ||
			strings.Contains(caps, needed) {
			t.Errorf("CapabilityBoundingSet=%s, want a list of what is taken away, without %s", caps, needed)
		}
	}
	if filter := settings(t)["SystemCallFilter"]; !strings.HasPrefix(filter, "~") ||
		strings.Contains(filter, "@mount") || strings.Contains(filter, "@clock") ||
		strings.Contains(filter, "@privileged") {
		t.Errorf("SystemCallFilter=%s, want a list of what is taken away, without @mount, @clock and @privileged",
			filter)
	}
}
