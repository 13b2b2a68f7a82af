package vm_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
	"github.com/edgecore-io/edgecore/test/vm"
)

// What a device of KubeEdge has. Its agent is played by a script that has the store open, as that one has.
const (
	theirUnit   = "/etc/systemd/system/edgecore.service"
	theirConfig = "/etc/kubeedge/config/edgecore.yaml"
	theirStore  = "/var/lib/kubeedge/edgecore.db"
)

var kubeEdgeFiles = map[string]string{
	theirUnit: "[Unit]\nDescription=edgecore.service\n\n" +
		"[Service]\nType=simple\nExecStart=/usr/local/bin/edgecore\nRestart=always\nRestartSec=10\n\n" +
		"[Install]\nWantedBy=multi-user.target\n",
	"/root/kubeedge.sh": "#!/bin/sh\nexec 9<" + theirStore + "\nexec sleep infinity\n",
	theirConfig: strings.NewReplacer(storeFile, theirStore, "/etc/edgecore/manifests", "/etc/kubeedge/manifests").
		Replace(config("enable: false")) +
		"      readOnlyPort: 10255\n    enableMetrics: true\n",
}

// TestAdopt: systemd itself puts edgecore in the place of KubeEdge's agent, which has the same name, and back; a reboot
// after each starts the one that has the place. On the way no container is restarted. What a kubelet makes otherwise
// than this agent is the subject of test/adopt.
func TestAdopt(t *testing.T) {
	d := newDevice(t, vm.AMD64)
	first := d.running("first start", 0, func(string) bool { return true })
	before := d.becomeKubeEdge()

	t.Logf("adopt says:\n%s", d.sh("/usr/bin/edgecore adopt 2>&1"))
	d.inForce("/lib/systemd/system/edgecore.service")
	adopted := d.running("taken over", 0, func(id string) bool { return slices.Contains(containers(first), id) })
	d.SetNetwork(false)
	if err := d.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.inForce("/lib/systemd/system/edgecore.service")
	d.running("rebooted", 1, func(id string) bool { return !slices.Contains(containers(adopted), id) })

	tasks := d.sh("ctr -n k8s.io tasks ls -q | sort")
	t.Logf("undo says:\n%s", d.sh("edgecore adopt --undo 2>&1"))
	d.inForce(theirUnit)
	if got := d.sh("ctr -n k8s.io tasks ls -q | sort"); got != tasks {
		t.Errorf("tasks after undo = %s\nwant %s", got, tasks)
	}
	if got := d.sh(theirFiles); got != before {
		t.Errorf("KubeEdge's files after undo = %s\nwant %s", got, before)
	}
	if err := d.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.inForce(theirUnit)
}

// theirFiles are KubeEdge's, and the package's configuration, with what they hold.
const theirFiles = "sha256sum " + theirUnit + " " + theirConfig + " " + theirStore + " /usr/local/bin/edgecore " +
	configFile + "; ls -A /var/lib/edgecore"

// becomeKubeEdge makes the device one whose pods KubeEdge has started, and returns its files.
func (d *device) becomeKubeEdge() (files string) {
	d.t.Helper()
	d.sh("systemctl stop edgecore; mkdir -p /var/lib/kubeedge /etc/kubeedge; mv /etc/edgecore/manifests " +
		"/etc/kubeedge/; mv " + storeFile + " " + theirStore + "; rm -rf /var/lib/edgecore/*")
	d.write(kubeEdgeFiles)
	d.sh("mv /root/kubeedge.sh /usr/local/bin/edgecore; chmod 755 /usr/local/bin/edgecore; systemctl daemon-reload; " +
		"systemctl reenable edgecore 2>&1; systemctl start edgecore")
	d.inForce(theirUnit)
	return d.sh(theirFiles)
}

// inForce waits until systemd has a unit of that name from there, which runs and is enabled.
func (d *device) inForce(unit string) {
	d.t.Helper()
	wait.Until(d.t, "systemd to have "+unit+" in force", func() error {
		got := strings.Fields(
			d.sh("for p in FragmentPath ActiveState UnitFileState NeedDaemonReload; do systemctl show -P $p " +
				"edgecore; done"))
		if len(got) != 4 || !strings.HasSuffix(got[0], unit) || got[1] != "active" || got[2] != "enabled" ||
			got[3] != "no" {
			return fmt.Errorf("systemd has %v, want %s, active and enabled", got, unit)
		}
		return nil
	})
}
