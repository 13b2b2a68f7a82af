package vm_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
	"github.com/edgecore-io/edgecore/test/testenv/wrongconfig"
	"github.com/edgecore-io/edgecore/test/vm"
)

var (
	wrong     = flag.Int("wrong", 4, "how many wrong configurations TestSafe tries; 0: all")
	wrongName = flag.String("wrong-name", "", "TestSafe tries this wrong configuration only")
)

const (
	// hostAddress is where a machine reaches the loopback of this one.
	hostAddress = "10.0.2.2"
	// longestStep is the longest time between a change and the kill or power cut that is to fall into what it causes.
	longestStep = 8 * time.Second
	// installed is said by dpkg-query of a package that is installed.
	installed = "install ok installed"
)

// takenFiles are a socket of systemd, which takes a port of the machine as soon as it boots.
var takenFiles = map[string]string{
	"/etc/systemd/system/taken.socket": "[Socket]\nListenStream=127.0.0.1:1884\n\n" +
		"[Install]\nWantedBy=sockets.target\n",
	"/etc/systemd/system/taken.service": "[Service]\nExecStart=sleep infinity\n",
}

// joined is a device of a real cluster, with a static pod and one of the cluster.
type joined struct {
	*device
	cluster *env.Cluster
	random  *rand.Rand
	good    string
}

// newJoined starts a cluster and boots a device that joins it. payload are its packages.
func newJoined(t *testing.T, payload map[string]string) *joined {
	t.Helper()
	binary, err := cloud.Build(t.Context(), t.TempDir())
	env.Must(t, err)
	c := env.StartCluster(t, &programs.Set{Cloud: binary}, env.ClusterOptions{
		Hub: map[string]any{"advertiseAddress": []string{"127.0.0.1", hostAddress}},
	})
	token, err := c.Cloud.Token(t.Context())
	env.Must(t, err)
	with := func(token string) string {
		return config(fmt.Sprintf(`enable: true, token: %q, configTrialSeconds: 60, httpServer: "https://%[2]s:%[3]d",
    tlsCaFile: %[5]s/ca.crt, tlsCertFile: %[5]s/edge.crt, tlsPrivateKeyFile: %[5]s/edge.key,
    websocket: {enable: true, server: "%[2]s:%[4]d"}`, token, hostAddress, c.Cloud.Bootstrap, c.Cloud.Link,
			"/etc/edgecore/certs")) +
			"      nodeStatusUpdateFrequency: 5s\n      imageGCHighThresholdPercent: 100\n" +
			"      evictionHard: {memory.available: 10Mi}\n" // the disk is filled, and no pod is to go for it
	}
	d := install(t, vm.Options{Payload: payload, Network: true}, map[string]string{
		configFile:                           with(token),
		"/etc/edgecore/manifests/local.yaml": manifest("local", ""),
	})
	j := &joined{device: d, cluster: c, random: rand.New(rand.NewPCG(*seed, 0)), good: with("")}
	c.NodeUntil("edge", "to be Ready", env.Ready)
	c.Apply(strings.Replace(manifest("assigned", ""), "\nspec:\n",
		"\nspec:\n  nodeName: edge\n  automountServiceAccountToken: false\n", 1)) // what it mounts nobody makes here
	d.write(takenFiles)
	d.sh("systemctl daemon-reload; systemctl enable --now taken.socket 2>&1")
	d.write(map[string]string{configFile: j.good})
	d.sh("systemctl restart edgecore")
	j.well("joined", nil)
	d.sh("sync")
	return j
}

// well waits until both pods run and the device is connected. Where same is given, they run in these containers.
func (j *joined) well(what string, same []string) (containers []string) {
	j.t.Helper()
	containers = j.run(what, same)
	wait.Until(j.t, what+": the device to be connected", func() error {
		out, _ := j.Shell(j.t.Context(), "edgecore status 2>&1 || true")
		if !regexp.MustCompile(`Cloud: +connected`).MatchString(out) {
			return fmt.Errorf("status says %s", out)
		}
		return nil
	})
	return containers
}

// run is the part of well about the pods.
func (j *joined) run(what string, same []string) (containers []string) {
	t := j.t
	t.Helper()
	began := time.Now()
	wait.Until(t, what+": the pods to run", func() error {
		tasks, err := j.Shell(t.Context(), "ctr -n k8s.io tasks ls")
		if err != nil {
			return err
		}
		containers = nil
		for _, name := range []string{"assigned", "local-edge"} {
			var p *v1.Pod
			p, err := j.cluster.API.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !ready(&p.Status) || !hasTask(tasks, container(&p.Status)) {
				return fmt.Errorf("pod %s is %s, %+v; tasks are %s", name, p.Status.Phase, p.Status.ContainerStatuses,
					tasks)
			}
			containers = append(containers, container(&p.Status))
		}
		return nil
	})
	for i := range same {
		if same[i] != containers[i] {
			t.Errorf("%s: container %s runs in place of %s, want the same", what, containers[i], same[i])
		}
	}
	t.Logf("%s: the pods run after %v", what, time.Since(began).Round(100*time.Millisecond))
	return containers
}

// says waits until the Node has a condition with a text, and no other of the configuration.
func (j *joined) says(what string, row wrongconfig.Row) {
	j.t.Helper()
	j.cluster.NodeUntil("edge", what+": to say what is wrong", func(n *v1.Node) error {
		for _, code := range []health.Code{
			health.ConfigurationBad, health.RestartNeeded, health.ModuleFailing, health.SocketFailing,
			health.ClientCABad, health.ReadOnlyServerStopped,
		} {
			kind := v1.NodeConditionType(code)
			if code == row.Code {
				if err := env.NodeCondition(n, kind, v1.ConditionTrue, row.Says); err != nil {
					return err
				}
			} else if env.NodeCondition(n, kind, v1.ConditionTrue, "") == nil {
				return fmt.Errorf("it has %s: %+v", code, n.Status.Conditions)
			}
		}
		return env.Ready(n)
	})
}

// cutOr takes the power away and boots the device again, or kills the agent.
func (j *joined) cutOr(cut bool) {
	t := j.t
	t.Helper()
	if !cut {
		j.sh("systemctl kill -s KILL edgecore || true")
		return
	}
	env.Must(t, j.Cut())
	env.Must(t, j.Boot(t.Context()))
}

// after lets time pass, so that what comes next falls into the middle of something.
func (j *joined) after(longest time.Duration) time.Duration {
	pause := time.Duration(j.random.Int64N(int64(longest))).Round(time.Millisecond)
	select {
	case <-j.t.Context().Done():
	case <-time.After(pause):
	}
	return pause
}

// try makes a wrong change, and kills the agent or cuts the power at a random moment after it.
func (j *joined) try(row wrongconfig.Row) {
	j.t.Helper()
	before := j.well(row.Name+", before", nil)
	if row.Text != nil {
		text, err := row.Text(j.good, wrongconfig.Place{
			Empty: "/root", Taken: "127.0.0.1:1884", Socket: "/run/systemd/private",
		})
		env.Must(j.t, err)
		env.Must(j.t, j.WriteFile(j.t.Context(), configFile, text, 0o600))
	}
	j.sh("CONFIG=" + configFile + "\n" + row.Script + "\nsync")
	pause, cut := j.after(longestStep), j.random.IntN(2) == 0
	what := fmt.Sprintf("%s, %v later, power cut %v", row.Name, pause, cut)
	j.cutOr(cut)
	if cut || row.Defaults {
		before = nil
	}
	if row.Code == health.ReadOnlyServerStopped {
		j.run(what, before) // "edgecore status" asks at that port; what the Node says then has come over the link
	} else {
		j.well(what, before)
	}
	j.says(what, row)
	j.correct(what)
}

func (j *joined) correct(what string) {
	j.t.Helper()
	j.sh("rm -rf " + configFile)
	env.Must(j.t, j.WriteFile(j.t.Context(), configFile, j.good, 0o600))
	j.sh("systemctl restart edgecore; sync")
	j.says(what+", corrected", wrongconfig.Row{})
}

// fullDisk fills the disk while the configuration is being written, which leaves it empty, and cuts the power. The
// runtime starts no container then; the agent runs, and its Node says why. With room on the disk, the pods run.
func (j *joined) fullDisk() {
	j.t.Helper()
	j.sh("dd if=/dev/zero of=/fill bs=1M 2>/dev/null || true; dd if=/dev/zero bs=4k 2>/dev/null >>/fill || true; " +
		": >" + configFile + "; sync")
	j.after(longestStep)
	j.cutOr(true)
	j.status("a full disk and an empty file", `Cloud: +connected`)
	empty := wrongconfig.Row{Code: health.ConfigurationBad, Says: "is empty"}
	j.says("a full disk and an empty file", empty)
	j.sh("rm /fill; sync")
	j.well("an empty file, and room on the disk", nil)
	j.says("an empty file, and room on the disk", empty)
	j.correct("a full disk and an empty file")
}

// TestSafe: whatever is written into the configuration of a device, with the disk full in the middle, and whenever its
// agent is killed or its power is cut: then its pods run, it is connected, and its Node says why.
func TestSafe(t *testing.T) {
	t.Logf("seed %d", *seed)
	j := newJoined(t, packaged(t, vm.AMD64))
	rows := wrongconfig.Rows(*seed)
	j.random.Shuffle(len(rows), func(a, b int) { rows[a], rows[b] = rows[b], rows[a] })
	if *wrong > 0 {
		rows = rows[:min(*wrong, len(rows))]
	}
	if *wrongName != "" {
		rows = slices.DeleteFunc(wrongconfig.Rows(*seed), func(r wrongconfig.Row) bool { return r.Name != *wrongName })
		if len(rows) == 0 {
			t.Fatalf("no wrong configuration has the name %q", *wrongName)
		}
	}
	for _, row := range rows {
		j.try(row)
	}
	j.fullDisk()
}

// TestUpgradesCut: the package is upgraded to a version with another schema and back, and the power is cut within dpkg
// or right after it. After the boot, before anybody repairs anything, the agent runs, its pods run, and it is
// connected. dpkg goes on where it was.
func TestUpgradesCut(t *testing.T) {
	t.Logf("seed %d", *seed)
	payload := packaged(t, vm.AMD64)
	dir := t.TempDir()
	for name, compatible := range map[string]bool{"compatible": true, "incompatible": false} {
		program := filepath.Join(dir, name)
		env.Must(t, vm.BuildNext(t.Context(), program, compatible))
		deb, err := vm.NextPackage(t.Context(), payload["edgecore.deb"], dir,
			vm.Next{Version: "+" + name, Program: program})
		env.Must(t, err)
		payload[name+".deb"] = deb
	}
	j := newJoined(t, payload)
	schema := j.schema()

	// A version whose store this one can use.
	j.install("compatible", true)
	if got := j.schema(); got != schema+1 {
		t.Errorf("schema after the upgrade = %d, want %d", got, schema+1)
	}
	j.install("edgecore", true)
	if got := j.schema(); got != schema+1 {
		t.Errorf("schema after the downgrade = %d, want %d: it is used as it is", got, schema+1)
	}
	j.rolledBack(false)

	// One whose store it cannot use, and whose configuration is not valid for it.
	j.sh("systemctl stop edgecore; rm " + storeFile + "*; systemctl start edgecore")
	j.well("a new store", nil)
	j.install("incompatible", true)
	env.Must(t, j.WriteFile(t.Context(), configFile, j.good+vm.NextKey+": new\n", 0o600))
	j.sh("systemctl restart edgecore")
	j.well("a new key", nil)
	j.says("a new key", wrongconfig.Row{})
	j.sh("sync")
	j.install("edgecore", true)
	if got := j.schema(); got != schema {
		t.Errorf("schema after the downgrade = %d, want %d", got, schema)
	}
	j.rolledBack(true)
	j.says("a key of a newer version", wrongconfig.Row{Code: health.ConfigurationBad, Says: vm.NextKey})
	j.correct("a key of a newer version")

	// Without a cut, no container is restarted.
	before := j.well("before the upgrade without a cut", nil)
	j.install("incompatible", false)
	j.well("upgraded", before)
	j.install("edgecore", false)
	j.well("downgraded", before)
}

// install installs a package of the payload. With cut, the power is cut while dpkg does so, or right after, and dpkg is
// told to go on only when the device is well.
func (j *joined) install(deb string, cut bool) {
	t := j.t
	t.Helper()
	began := time.Now()
	command := "DEBIAN_FRONTEND=noninteractive dpkg -i /payload/" + deb + ".deb"
	if !cut {
		j.sh(command + " 2>&1")
		t.Logf("%s installed in %v", deb, time.Since(began).Round(100*time.Millisecond))
		return
	}
	j.sh("systemd-run --quiet --unit=dpkg-" + deb + " sh -c '" + command + "'")
	pause := j.after(3 * longestStep)
	what := fmt.Sprintf("%s, power cut after %v", deb, pause)
	j.cutOr(true)
	state := j.state()
	j.well(what+", dpkg says "+state, nil)
	j.sh("dpkg --configure -a 2>&1")
	if after := j.state(); !strings.HasPrefix(after, installed) {
		t.Logf("%s: dpkg --configure -a leaves %q", what, after)
	}
	j.sh(command + " 2>&1") // also what does a package that was unpacked in part
	if after := j.state(); !strings.HasPrefix(after, installed) {
		t.Errorf("%s: dpkg says %q in the end, want %q", what, after, installed)
	}
	j.well(what+", installed again", nil)
}

// state is what dpkg knows of the package.
func (j *joined) state() string {
	j.t.Helper()
	return j.sh("dpkg-query -W -f '${Status} ${Version}' edgecore")
}

// schema returns the schema of the store.
func (j *joined) schema() (version int) {
	j.t.Helper()
	_, err := fmt.Sscan(j.sh("sqlite3 "+storeFile+" 'PRAGMA user_version'"), &version)
	env.Must(j.t, err)
	return version
}

// rolledBack waits until the Node says that its store was rolled back, or that this is over; or checks that it does
// not.
func (j *joined) rolledBack(want bool) {
	j.t.Helper()
	j.cluster.NodeUntil("edge", "to say whether its store was rolled back", func(n *v1.Node) error {
		for _, c := range n.Status.Conditions {
			if c.Type == v1.NodeConditionType(health.StoreRolledBack) {
				if !want {
					j.t.Errorf("the Node has %+v, want no such condition", c)
				}
				return nil
			}
		}
		if want {
			return fmt.Errorf("its conditions are %+v", n.Status.Conditions)
		}
		return nil
	})
}
