// Package systemd plays systemd for one service, edgecore.service, on a device whose files all lie in a folder: a
// script of the name systemctl starts and stops real processes.
package systemd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// script starts what the unit in force says, and stops it.
const script = `#!/bin/sh
root=%s
# One at a time, and after the start of one that was killed: the service keeps the lock until its pid is known.
exec 9>"$root/run/systemctl.lock"
flock 9
pid=$root/run/service.pid
unit=$root/etc/systemd/system/edgecore.service
[ -e "$unit" ] || unit=$root/usr/lib/systemd/system/edgecore.service
echo "systemctl $*" >>"$root/run/systemctl.log"
alive() { [ -s "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; }
stop() {
  alive || return 0
  kill -TERM "$(cat "$pid")"
  n=0
  while alive && [ $n -lt 300 ]; do sleep 0.1; n=$((n + 1)); done
  ! alive
}
start() {
  [ -e "$unit" ] || { echo "Unit edgecore.service not found." >&2; return 5; }
  command=$(sed -n 's/^ExecStart=//p' "$unit")
  rm -f "$pid"
  setsid sh -c "cd '$root'; echo \$\$ >'$pid'; exec $command 9>&-" >>"$root/run/service.log" 2>&1 </dev/null &
  while [ ! -s "$pid" ]; do sleep 0.05; done
}
case $1 in
is-active) alive ;;
stop) stop ;;
start) alive || start ;;
restart) stop && start ;;
esac
`

// unit is KubeEdge's, as keadm writes it.
const unit = "[Unit]\nDescription=edgecore.service\n\n" +
	"[Service]\nType=simple\nExecStart=%s\nRestart=always\nRestartSec=10\n\n" +
	"[Install]\nWantedBy=multi-user.target\n"

// Play puts systemctl into a device's bin.
func Play(root string) error {
	for _, dir := range []string{"run/systemd/system", "bin"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(root, "bin", "systemctl"), fmt.Appendf(nil, script, root), 0o755)
}

// KubeEdge makes the service one of KubeEdge, with a command, and enables it.
func KubeEdge(root, command string) error {
	dir := filepath.Join(root, "etc/systemd/system")
	wants := filepath.Join(dir, "multi-user.target.wants")
	if err := os.MkdirAll(wants, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "edgecore.service"), fmt.Appendf(nil, unit, command), 0o644); err != nil {
		return err
	}
	return os.Symlink("/etc/systemd/system/edgecore.service", filepath.Join(wants, "edgecore.service"))
}

// Run runs systemctl.
func Run(root string, args ...string) error {
	if out, err := exec.Command(filepath.Join(root, "bin", "systemctl"), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl %v: %w: %s", args, err, out)
	}
	return nil
}

// PID is that of the service's process.
func PID(root string) (int, error) {
	text, err := os.ReadFile(filepath.Join(root, "run", "service.pid"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// Log is what the service's processes write.
func Log(root string) string { return filepath.Join(root, "run", "service.log") }
