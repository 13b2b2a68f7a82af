package kubeedge

import (
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/kubeedge"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestCloudAdopt: the documented commands, word for word, replace the cloudcore of KubeEdge's chart and bring it back.
// An edge of KubeEdge's reconnects by itself both times, and its containers run on. The cluster has no node that could
// run the pods of a cloudcore: the programs run beside it, each while its Deployment is there, ours with the
// configuration that is in the ConfigMap then.
func TestCloudAdopt(t *testing.T) {
	for _, chart := range []string{"hostnetwork", "nodeport"} {
		t.Run(chart, func(t *testing.T) {
			f := newFixture(t, "1.23")
			theirs, token := f.startTheirCloud()
			f.joinTheirs(token, theirs.Link, theirs.Bootstrap)
			wait.Until(f.t, "the node is Ready", f.nodeReady)
			f.applyChart(chart, theirs)
			f.apply(full("web"))
			wait.Until(f.t, "the pod is ready", f.is("web", true))
			run := f.containers()
			ca := f.secret("casecret")
			commands := documentedMove(t)
			shell := f.shell()

			shell(commands["kubectl get secret"])
			if text, err := os.ReadFile(filepath.Join(f.workDir, "kubeedge-secrets.yaml")); err != nil ||
				!strings.Contains(string(text), "name: casecret") {
				t.Errorf("the backup is %q, %v; want casecret in it", text, err)
			}
			shell(commands["cloudcore adopt plan"])
			env.Must(t, theirs.Stop(t.Context()))
			shell(commands["cloudcore adopt apply"])
			ours := f.startAdopted(theirs)
			f.follows("with our cloudcore", "second", false)
			if !cmp.Equal(ca, f.secret("casecret")) { // not shown: it has a key
				t.Error("casecret has changed, want the CA that devices trust")
			}
			f.certified(theirs.Bootstrap)
			shell(commands["cloudcore adopt apply"]) // changes nothing
			for _, command := range commands {
				if strings.Contains(command, "--ignore-not-found") {
					shell(command)
				}
			}

			env.Must(t, ours.Stop(t.Context()))
			shell(commands["cloudcore adopt undo"])
			_, err := theirs.Start(t.Context())
			env.Must(t, err)
			f.follows("with KubeEdge's cloudcore again", "third", true)
			if now := f.containers(); !maps.Equal(run, now) {
				t.Errorf("containers = %v, want %v as before", now, run)
			}
			f.end()
		})
	}
}

// applyChart makes the objects of KubeEdge's chart, with the addresses and ports of a cloudcore that runs as a process.
// The broker for edges is left out: there is no image of it here.
func (f *fixture) applyChart(chart string, c *kubeedge.Cloud) {
	f.t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "cloud", "adopt", "testdata", "kubeedge-"+chart+".yaml"))
	env.Must(f.t, err)
	text := strings.NewReplacer("192.0.2.20", "127.0.0.1", "address: 0.0.0.0", "address: 127.0.0.1",
		"maxIncomingStreams: 10000", "maxIncomingStreams: 10000", // not a port
		"10000", strconv.Itoa(c.Link), "10002", strconv.Itoa(c.Bootstrap), "10004", strconv.Itoa(c.Stream),
	).Replace(string(data))
	for _, object := range strings.Split(text, "\n---\n") {
		if !strings.Contains(object, "name: edge-eclipse-mosquitto") {
			f.apply(object)
		}
	}
	f.kube.ReadyPods(f.t, "kubeedge")
}

func (f *fixture) secret(name string) map[string][]byte {
	f.t.Helper()
	s, err := f.api.CoreV1().Secrets("kubeedge").Get(f.t.Context(), name, metav1.GetOptions{})
	env.Must(f.t, err)
	return s.Data
}

// documentedMove are the commands of the section "Cloud first" of docs/kubeedge.md, by their first words.
func documentedMove(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "kubeedge.md"))
	env.Must(t, err)
	_, section, _ := strings.Cut(string(text), "\n## Cloud first\n")
	section, _, _ = strings.Cut(section, "\n## ")
	commands := map[string]string{}
	for _, match := range regexp.MustCompile(`(?m)^    ((?:kubectl|cloudcore) .*)`).FindAllStringSubmatch(section, -1) {
		words := strings.Fields(strings.Replace(match[1], "-n kubeedge ", "", 1))
		commands[strings.Join(words[:3], " ")] += match[1] + "\n"
	}
	for _, want := range []string{
		"kubectl get secret", "cloudcore adopt plan", "cloudcore adopt apply", "cloudcore adopt undo",
		"kubectl delete daemonset", "kubectl delete mutatingwebhookconfiguration",
	} {
		if commands[want] == "" {
			t.Fatalf("docs/kubeedge.md has the commands %v, want %s", commands, want)
		}
	}
	return commands
}

// shell returns what runs documented commands, in a folder of the test's, as an admin of the cluster.
func (f *fixture) shell() func(commands string) {
	f.t.Helper()
	f.workDir = f.t.TempDir()
	bin := f.t.TempDir()
	for name, program := range map[string]string{"kubectl": f.kube.KubectlPath(), "cloudcore": built.Cloud} {
		program, err := filepath.Abs(program)
		env.Must(f.t, err)
		env.Must(f.t, os.Symlink(program, filepath.Join(bin, name)))
	}
	return func(commands string) {
		f.t.Helper()
		commands = strings.ReplaceAll(commands, "REGISTRY/cloudcore:TAG", "registry.example.com/cloudcore:1")
		cmd := exec.CommandContext(f.t.Context(), "sh", "-euc", commands)
		cmd.Dir = f.workDir
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"),
			"KUBECONFIG="+f.kube.Kubeconfig(kube.AdminUser), "KUBECACHEDIR="+f.workDir)
		out, err := cmd.CombinedOutput()
		f.t.Logf("%s%s", commands, out)
		if err != nil {
			f.t.Fatalf("%s: %v, want no error", commands, err)
		}
	}
}

// startAdopted starts our cloudcore with the configuration in the ConfigMap, and with the way to the cluster that a pod
// would have.
func (f *fixture) startAdopted(theirs *kubeedge.Cloud) *cloud.Cloud {
	f.t.Helper()
	cm, err := f.api.CoreV1().ConfigMaps("kubeedge").Get(f.t.Context(), "cloudcore", metav1.GetOptions{})
	env.Must(f.t, err)
	config := map[string]any{}
	env.Must(f.t, yaml.Unmarshal([]byte(cm.Data["cloudcore.yaml"]), &config))
	kubeconfig, err := f.kube.AddServiceAccount(f.t.Context(), "kubeedge", "cloudcore")
	env.Must(f.t, err)
	dir := filepath.Join(f.t.TempDir(), "cloud")
	c, err := cloud.New(cloud.Options{
		Binary: built.Cloud, Dir: dir, Kubeconfig: kubeconfig,
		Started: func(id daemon.Identity) error {
			return f.kube.Host("cloudcore", kube.Guest{Process: id, Dir: dir})
		},
	})
	env.Must(f.t, err)
	config["kubeAPIConfig"] = map[string]any{"kubeConfig": kubeconfig}
	config["commonConfig"] = map[string]any{
		"monitorServer": map[string]any{"bindAddress": "127.0.0.1:" + strconv.Itoa(c.Monitor)},
	}
	stream, ok := config["modules"].(map[string]any)["cloudStream"].(map[string]any)
	if !ok {
		f.t.Fatalf("the configuration has no modules.cloudStream: %v", config)
	}
	// none of those that free ports are taken from
	stream["firstPort"], stream["lastPort"] = 12000, 19999
	text, err := yaml.Marshal(config)
	env.Must(f.t, err)
	env.Must(f.t, os.WriteFile(c.Config(), text, 0o600))
	f.t.Cleanup(func() {
		if f.t.Failed() {
			f.t.Logf("the end of cloudcore's log:\n%s", daemon.Tail(c.Log(), 40))
		}
	})
	env.Must(f.t, c.Start(f.t.Context()))
	return c
}

// follows waits until a status of the edge arrives in the cluster, and a change at the edge.
func (f *fixture) follows(when, value string, ready bool) {
	f.t.Helper()
	command := "touch /scratch/unready"
	if ready {
		command = "rm /scratch/unready"
	}
	env.Must(f.t, f.sees("web", command, "")())
	wait.Until(f.t, when+", a status arrives", f.is("web", ready))
	f.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {key: ` + value + `}}`)
	wait.Until(f.t, when+", a change arrives", f.sees("web", "cat /conf/key", value))
}

// certified checks that the certificate of cloudcore names the address that devices dial.
func (f *fixture) certified(port int) {
	f.t.Helper()
	// only the name is checked
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(f.t.Context(), "tcp",
		net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	env.Must(f.t, err)
	defer conn.Close()
	tlsConn, ok := conn.(*tls.Conn)
	if !ok {
		f.t.Fatal(errors.New("the connection is not one of TLS"))
	}
	if err := tlsConn.ConnectionState().PeerCertificates[0].VerifyHostname("127.0.0.1"); err != nil {
		f.t.Errorf("the certificate of cloudcore: %v, want 127.0.0.1 in it", err)
	}
}
