package kube

import (
	"fmt"
	"net"
	"time"
)

// The files of a cluster, in its folder.
const (
	caFile         = "ca.crt"
	caKeyFile      = "ca.key"
	servingFile    = "apiserver.crt"
	servingKeyFile = "apiserver.key"
	kubeletFile    = "kubelet-client.crt"
	kubeletKeyFile = "kubelet-client.key"
	tokensKeyFile  = "service-accounts.key"
	etcdSocket     = "etcd.sock"
	etcdPeerSocket = "peer.sock"
	recordFile     = "cluster.json"

	// kubeletClient is who kube-apiserver is to nodes, and to the servers of more APIs.
	kubeletClient = "kube-apiserver-kubelet-client"

	// ServiceRange is the network of services.
	ServiceRange = "10.96.0.0/24"
	// Issuer is who the tokens of service accounts come from, and whom they are for unless a pod says otherwise.
	Issuer = "https://kubernetes.default.svc.cluster.local"
)

// serviceIP is the address of the service "kubernetes", the first of its range.
var serviceIP = net.IPv4(10, 96, 0, 1)

// Options say what a cluster is made of. The zero value is etcd and kube-apiserver.
type Options struct {
	// ControllerManager and Scheduler are started too; without them, Start of the component does it later.
	ControllerManager, Scheduler bool

	// NodeMonitorGracePeriod is how long a node may say nothing until it counts as unreachable;
	// NodeMonitorPeriod how often that is looked at. 0: Kubernetes' own, 50 s and 5 s.
	NodeMonitorGracePeriod, NodeMonitorPeriod time.Duration
	// TolerationTime is how long a pod that says nothing of it tolerates a node that is not ready
	// or unreachable, before it is evicted. 0: Kubernetes' own, 5 minutes. Note that Kubernetes evicts
	// nothing when all nodes are gone: the cluster of a test that waits for it needs a second one that
	// renews its lease.
	TolerationTime time.Duration

	// Aggregation has kube-apiserver pass requests on to the servers of more APIs, such as metrics-server.
	Aggregation bool
	// VerifyKubelets has kube-apiserver and metrics-server accept no certificate of a node but those that the cluster
	// has signed, for the address that they connect to.
	VerifyKubelets bool

	// The flags of a component, beside those that make it part of the cluster.
	APIServerFlags, ControllerManagerFlags, SchedulerFlags []string

	// Binaries is the folder of the programs. Empty: those that Build returns.
	Binaries string
}

// etcdFlags keep the data where the machine's memory may have it: a cluster need not survive a power cut.
// It listens on sockets in the cluster's folder, so no two clusters meet.
func (c *Cluster) etcdFlags() []string {
	return []string{
		"--data-dir=" + c.etcdData(),
		"--listen-client-urls=" + c.etcdURL(),
		// May not be a socket; nobody is told to come there.
		"--advertise-client-urls=http://localhost:2379",
		"--listen-peer-urls=unix://" + c.file(etcdPeerSocket),
		"--unsafe-no-fsync",
		"--log-level=warn",
		"--snapshot-count=5000", // less in memory for members that lag behind
	}
}

func (c *Cluster) etcdURL() string { return "unix://" + c.file(etcdSocket) }

func (c *Cluster) apiServerFlags() []string {
	flags := []string{
		"--etcd-servers=" + c.etcdURL(),
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", c.APIServer.port.Number),
		// The service kubernetes has no endpoint: a loopback address may not be one.
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=" + ServiceRange,
		"--client-ca-file=" + c.file(caFile),
		"--tls-cert-file=" + c.file(servingFile),
		"--tls-private-key-file=" + c.file(servingKeyFile),
		"--kubelet-client-certificate=" + c.file(kubeletFile),
		"--kubelet-client-key=" + c.file(kubeletKeyFile),
		"--service-account-issuer=" + Issuer,
		"--service-account-key-file=" + c.file(tokensKeyFile),
		"--service-account-signing-key-file=" + c.file(tokensKeyFile),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--profiling=false",
		// Without it, an apiserver that is told to end waits a minute for those who watch.
		"--shutdown-watch-termination-grace-period=1s",
	}
	if seconds := int64(c.opts.TolerationTime.Seconds()); seconds > 0 {
		flags = append(flags,
			fmt.Sprintf("--default-not-ready-toleration-seconds=%d", seconds),
			fmt.Sprintf("--default-unreachable-toleration-seconds=%d", seconds))
	}
	if c.opts.Aggregation {
		flags = append(flags,
			"--requestheader-client-ca-file="+c.file(caFile), "--requestheader-allowed-names="+kubeletClient,
			"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--proxy-client-cert-file="+c.file(kubeletFile), "--proxy-client-key-file="+c.file(kubeletKeyFile))
	}
	if ca := c.KubeletCA(); ca != "" {
		flags = append(flags, "--kubelet-certificate-authority="+ca)
	}
	return append(flags, c.opts.APIServerFlags...)
}

func (c *Cluster) controllerManagerFlags() []string {
	flags := []string{
		"--kubeconfig=" + c.Kubeconfig(controllerManagerUser),
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", c.ControllerManager.port.Number),
		"--tls-cert-file=" + c.file(servingFile),
		"--tls-private-key-file=" + c.file(servingKeyFile),
		"--leader-elect=false",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + c.file(tokensKeyFile),
		"--root-ca-file=" + c.file(caFile),
		"--cluster-signing-cert-file=" + c.file(caFile),
		"--cluster-signing-key-file=" + c.file(caKeyFile),
		"--profiling=false",
		// It asks for some 40 service accounts at its start, at 20 a second by itself.
		"--kube-api-qps=500", "--kube-api-burst=1000",
	}
	if c.opts.NodeMonitorGracePeriod > 0 {
		flags = append(flags, "--node-monitor-grace-period="+c.opts.NodeMonitorGracePeriod.String())
	}
	if c.opts.NodeMonitorPeriod > 0 {
		flags = append(flags, "--node-monitor-period="+c.opts.NodeMonitorPeriod.String())
	}
	return append(flags, c.opts.ControllerManagerFlags...)
}

func (c *Cluster) schedulerFlags() []string {
	return append([]string{
		"--kubeconfig=" + c.Kubeconfig(schedulerUser),
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", c.Scheduler.port.Number),
		"--tls-cert-file=" + c.file(servingFile),
		"--tls-private-key-file=" + c.file(servingKeyFile),
		"--leader-elect=false",
		"--profiling=false",
	}, c.opts.SchedulerFlags...)
}
