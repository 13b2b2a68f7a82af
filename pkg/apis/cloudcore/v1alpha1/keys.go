package v1alpha1

import (
	"math"

	"github.com/edgecore-io/edgecore/pkg/apis/strict/keytable"
)

// The uses of keys, as the rows name them. No change applies before a restart.
const (
	ignored = keytable.Ignored
	absent  = keytable.Absent
	restart = keytable.Restart
)

// table has the rows of the configuration's keys.
type table struct{ keytable.Table }

// keys is the table of the configuration's keys. A row has the key's name, the field, the default, what comes of it,
// and which values are allowed. A part that acts on another key says so here; a test of cloud/cloudconfig fails if
// nothing comes of it. A key without a row is accepted and ignored, and its default is its zero. A default of a rare
// type is set before the row. Some defaults grow with the number of nodes. Checks of several keys together are in
// validate.go.
func (t *table) keys(c *CloudCore, nodes int32) {
	t.Section("", true)
	t.Row("apiVersion", restart)
	t.Row("kind", restart)

	t.Section("commonConfig.", true)
	t.Int32("tunnelPort", &c.CommonConfig.TunnelPort, 10350, ignored).Within(0, math.MaxUint16)
	monitor := &c.CommonConfig.MonitorServer
	t.String("monitorServer.bindAddress", &monitor.BindAddress, DefaultMonitorBind, restart).IfSet().
		By(checkBindAddress)
	t.Row("monitorServer.enableProfiling", restart)

	t.kubeAPI(&c.KubeAPIConfig, nodes)
	m := &c.Modules
	t.cloudHub(&m.CloudHub, nodes)
	t.edgeController(&m.EdgeController, nodes)
	t.deviceController(&m.DeviceController)
	t.cloudStream(&m.CloudStream)
	t.dynamicController(&m.DynamicController)
	t.others(m)
}

func (t *table) kubeAPI(a *KubeAPIConfig, nodes int32) {
	t.Section("kubeAPIConfig.", true)
	t.String("master", &a.Master, "", restart).IfSet().By(checkServerURL)
	t.String("kubeConfig", &a.KubeConfig, "", restart).AbsoluteOrNone()
	t.String("contentType", &a.ContentType, ContentTypeProtobuf, restart).
		OneOf(ContentTypeProtobuf + " " + ContentTypeJSON)
	t.Int32("qps", &a.QPS, times(nodes, qpsPerNode), restart).AtLeast(1)
	t.Int32("burst", &a.Burst, times(nodes, burstPerNode), restart).AtLeast(1)
}

func (t *table) cloudHub(h *CloudHub, nodes int32) {
	t.Section("modules.cloudHub.", h.Enable)
	t.Bool("enable", &h.Enable, true, restart) // to switch it off is refused
	t.Int32("keepaliveInterval", &h.KeepaliveInterval, 30, restart).AtLeast(1)
	t.Int32("nodeLimit", &h.NodeLimit, nodes, restart).AtLeast(1)
	t.Int32("writeTimeout", &h.WriteTimeout, 30, restart).AtLeast(0)
	if t.Sets(h.AdvertiseAddress == nil, restart) {
		h.AdvertiseAddress = []string{HostIP()}
	}
	keytable.Check(t.Row("advertiseAddress", restart), h.AdvertiseAddress, checkAddresses)
	if t.Sets(h.DNSNames == nil, restart) {
		h.DNSNames = []string{""}
	}
	keytable.Check(t.Row("dnsNames", restart), h.DNSNames, checkDNSNames)
	t.String("tlsCAFile", &h.TLSCAFile, caFile, restart).AbsoluteOrNone()
	t.String("tlsCAKeyFile", &h.TLSCAKeyFile, caKeyFile, restart).AbsoluteOrNone()
	t.String("tlsCertFile", &h.TLSCertFile, certFile, restart).AbsoluteOrNone()
	t.String("tlsPrivateKeyFile", &h.TLSPrivateKeyFile, keyFile, restart).AbsoluteOrNone()
	t.Int32("edgeCertSigningDuration", &h.EdgeCertSigningDuration, 365, restart).Within(1, maxDays)
	t.Int32("tokenRefreshDuration", &h.TokenRefreshDuration, 12, restart).Within(1, maxDays*24)
	t.Row("legacyCertificates", restart)
	// 20 let 300 devices behind one address join in two and a half minutes.
	t.Int32("lookupsPerSource", &h.LookupsPerSource, 20, restart).Within(1, 10000)
	t.Row("authorization.enable", ignored)
	t.Bool("authorization.debug", &h.Authorization.Debug, true, ignored)
	if t.Sets(h.Authorization.Modes == nil, ignored) {
		h.Authorization.Modes = []AuthorizationMode{{Node: Switch{Enable: true}}}
	}
	t.Row("authorization.modes", ignored)

	t.listener("websocket", h.Enable, &h.WebSocket, true, 10000)
	t.listener("https", h.Enable, &h.HTTPS, true, 10002)
	t.listener("quic", h.Enable, &h.Quic.Listener, false, 10001)
	t.Int32("maxIncomingStreams", &h.Quic.MaxIncomingStreams, 10000, ignored).AtLeast(1)
	t.Section("modules.cloudHub.unixsocket.", h.Enable && h.UnixSocket.Enable)
	t.Bool("enable", &h.UnixSocket.Enable, true, restart)
	t.String("address", &h.UnixSocket.Address, DefaultUnixSocket, restart).By(checkSocket)
}

// listener has the keys of a server of cloudHub.
func (t *table) listener(name string, hub bool, l *Listener, on bool, port int32) {
	t.Section("modules.cloudHub."+name+".", hub && l.Enable)
	t.Bool("enable", &l.Enable, on, restart)
	t.String("address", &l.Address, anyIPv4, restart).Address()
	t.Int32("port", &l.Port, port, restart).Within(1, math.MaxUint16)
}

// edgeController has, below buffer and load, the lengths of KubeEdge's queues and the sizes of its pools of workers.
func (t *table) edgeController(e *EdgeController, nodes int32) {
	t.Section("modules.edgeController.", e.Enable)
	t.Bool("enable", &e.Enable, true, restart) // to switch it off is refused
	t.Int32("nodeUpdateFrequency", &e.NodeUpdateFrequency, 10, ignored).AtLeast(1)

	t.Section("modules.edgeController.buffer.", e.Enable)
	b := &e.Buffer
	t.Int32("processEvent", &b.ProcessEvent, queue, ignored).AtLeast(0)
	t.Int32("updatePodStatus", &b.UpdatePodStatus, queue, ignored).AtLeast(0)
	t.Int32("updateNodeStatus", &b.UpdateNodeStatus, queue, ignored).AtLeast(0)
	t.Int32("queryConfigMap", &b.QueryConfigMap, queue, ignored).AtLeast(0)
	t.Int32("querySecret", &b.QuerySecret, queue, ignored).AtLeast(0)
	t.Int32("queryPersistentVolume", &b.QueryPersistentVolume, queue, ignored).AtLeast(0)
	t.Int32("queryPersistentVolumeClaim", &b.QueryPersistentVolumeClaim, queue, ignored).AtLeast(0)
	t.Int32("queryVolumeAttachment", &b.QueryVolumeAttachment, queue, ignored).AtLeast(0)
	t.Int32("createNode", &b.CreateNode, queue, ignored).AtLeast(0)
	t.Int32("patchNode", &b.PatchNode, plus(queue, nodes/2), ignored).AtLeast(0)
	t.Int32("queryNode", &b.QueryNode, plus(queue, nodes), ignored).AtLeast(0)
	t.Int32("updateNode", &b.UpdateNode, queue, ignored).AtLeast(0)
	t.Int32("patchPod", &b.PatchPod, queue, ignored).AtLeast(0)
	t.Int32("deletePod", &b.DeletePod, queue, ignored).AtLeast(0)
	t.Int32("createPod", &b.CreatePod, queue, ignored).AtLeast(0)
	t.Int32("createLease", &b.CreateLease, plus(queue, nodes), ignored).AtLeast(0)
	t.Int32("queryLease", &b.QueryLease, queue, ignored).AtLeast(0)
	t.Int32("serviceAccountToken", &b.ServiceAccountToken, queue, ignored).AtLeast(0)
	t.Int32("certificateSigningRequest", &b.CertificateSigningRequest, queue, ignored).AtLeast(0)
	t.Int32("podEvent", &b.PodEvent, 1, ignored).AtLeast(0)
	t.Int32("configMapEvent", &b.ConfigMapEvent, 1, ignored).AtLeast(0)
	t.Int32("secretEvent", &b.SecretEvent, 1, ignored).AtLeast(0)
	t.Int32("rulesEvent", &b.RulesEvent, 1, ignored).AtLeast(0)
	t.Int32("ruleEndpointsEvent", &b.RuleEndpointsEvent, 1, ignored).AtLeast(0)

	t.Section("modules.edgeController.load.", e.Enable)
	l := &e.Load
	t.Int32("updatePodStatusWorkers", &l.UpdatePodStatusWorkers, 1, ignored).AtLeast(0)
	t.Int32("updateNodeStatusWorkers", &l.UpdateNodeStatusWorkers, 1, ignored).AtLeast(0)
	t.Int32("processEventWorkers", &l.ProcessEventWorkers, 4, ignored).AtLeast(0)
	t.Int32("queryConfigMapWorkers", &l.QueryConfigMapWorkers, 100, ignored).AtLeast(0)
	t.Int32("querySecretWorkers", &l.QuerySecretWorkers, 100, ignored).AtLeast(0)
	t.Int32("queryPersistentVolumeWorkers", &l.QueryPersistentVolumeWorkers, 4, ignored).AtLeast(0)
	t.Int32("queryPersistentVolumeClaimWorkers", &l.QueryPersistentVolumeClaimWorkers, 4, ignored).AtLeast(0)
	t.Int32("queryVolumeAttachmentWorkers", &l.QueryVolumeAttachmentWorkers, 4, ignored).AtLeast(0)
	t.Int32("createNodeWorkers", &l.CreateNodeWorkers, 100, ignored).AtLeast(0)
	t.Int32("patchNodeWorkers", &l.PatchNodeWorkers, plus(100, nodes/50), ignored).AtLeast(0)
	t.Int32("queryNodeWorkers", &l.QueryNodeWorkers, nodes, ignored).AtLeast(0)
	t.Int32("updateNodeWorkers", &l.UpdateNodeWorkers, 4, ignored).AtLeast(0)
	t.Int32("patchPodWorkers", &l.PatchPodWorkers, 100, ignored).AtLeast(0)
	t.Int32("deletePodWorkers", &l.DeletePodWorkers, 100, ignored).AtLeast(0)
	t.Int32("CreatePodWorks", &l.CreatePodWorks, 4, ignored).AtLeast(0)
	t.Int32("createLeaseWorkers", &l.CreateLeaseWorkers, nodes, ignored).AtLeast(0)
	t.Int32("queryLeaseWorkers", &l.QueryLeaseWorkers, 100, ignored).AtLeast(0)
	t.Int32("UpdateRuleStatusWorkers", &l.UpdateRuleStatusWorkers, 4, ignored).AtLeast(0)
	t.Int32("ServiceAccountTokenWorkers", &l.ServiceAccountTokenWorkers, 100, ignored).AtLeast(0)
	t.Int32("certificateSigningRequestWorkers", &l.CertificateSigningRequestWorkers, 4, ignored).AtLeast(0)
}

func (t *table) deviceController(d *DeviceController) {
	t.Section("modules.deviceController.", d.Enable)
	t.Bool("enable", &d.Enable, true, restart)
	t.Int32("statusInterval", &d.StatusInterval, 1, restart).Within(1, 3600)
	t.Int32("statusWritesPerNode", &d.StatusWritesPerNode, 20, restart).Within(1, 10000)

	t.Section("modules.deviceController.buffer.", d.Enable)
	b := &d.Buffer
	t.Int32("updateDeviceTwins", &b.UpdateDeviceTwins, queue, ignored).AtLeast(0)
	t.Int32("updateDeviceStatus", &b.UpdateDeviceStatus, queue, ignored).AtLeast(0)
	t.Int32("deviceEvent", &b.DeviceEvent, 1, ignored).AtLeast(0)
	t.Int32("deviceModelEvent", &b.DeviceModelEvent, 1, ignored).AtLeast(0)
	t.Int32("deviceStatusEvent", &b.DeviceStatusEvent, 1, ignored).AtLeast(0)
	t.Section("modules.deviceController.load.", d.Enable)
	t.Int32("updateDeviceStatusWorkers", &d.Load.UpdateDeviceStatusWorkers, 1, ignored).AtLeast(0)
}

func (t *table) cloudStream(s *CloudStream) {
	t.Section("modules.cloudStream.", s.Enable)
	t.Bool("enable", &s.Enable, true, restart)
	t.String("tunnel", &s.Tunnel, TunnelAlways, restart).OneOf(TunnelAlways + " " + TunnelAuto + " " + TunnelNever)
	t.String("address", &s.Address, "", restart).IfSet().Address()
	t.String("listenAddress", &s.ListenAddress, "", restart).IfSet().Address()
	t.Int32("firstPort", &s.FirstPort, 20000, restart).Within(1, math.MaxUint16)
	t.Int32("lastPort", &s.LastPort, 29999, restart).Within(int64(s.FirstPort), math.MaxUint16)
	t.Int32("streamsPerNode", &s.StreamsPerNode, 256, restart).Within(1, 1024)
	t.Row("bytesPerSecondPerNode", restart).Number(s.BytesPerSecondPerNode).AtLeast(0)
	t.Int32("tunnelPort", &s.TunnelPort, 10004, restart).Within(1, math.MaxUint16)
	t.Int32("streamPort", &s.StreamPort, 10003, ignored).Within(1, math.MaxUint16)
	t.String("tlsTunnelCAFile", &s.TLSTunnelCAFile, caFile, ignored)
	t.String("tlsTunnelCertFile", &s.TLSTunnelCertFile, certFile, ignored)
	t.String("tlsTunnelPrivateKeyFile", &s.TLSTunnelPrivateKeyFile, keyFile, ignored)
	t.String("tlsStreamCAFile", &s.TLSStreamCAFile, "/etc/kubeedge/ca/streamCA.crt", ignored)
	t.String("tlsStreamCertFile", &s.TLSStreamCertFile, "/etc/kubeedge/certs/stream.crt", ignored)
	t.String("tlsStreamPrivateKeyFile", &s.TLSStreamPrivateKeyFile, "/etc/kubeedge/certs/stream.key", ignored)
}

func (t *table) dynamicController(d *Switch) {
	t.Section("modules.dynamicController.", d.Enable)
	t.Row("enable", restart)
}

// others has the keys of modules that this version lacks or does not need: a wrong value is still wrong.
func (t *table) others(m *Modules) {
	t.Section("modules.taskManager.", m.TaskManager.Enable)
	t.Row("enable", absent)
	t.Int32("buffer.taskStatus", &m.TaskManager.Buffer.TaskStatus, queue, ignored).AtLeast(0)
	t.Int32("buffer.taskEvent", &m.TaskManager.Buffer.TaskEvent, 1, ignored).AtLeast(0)
	t.Int32("load.taskWorkers", &m.TaskManager.Load.TaskWorkers, 1, ignored).AtLeast(0)

	t.Section("modules.", true)
	t.Bool("syncController.enable", &m.SyncController.Enable, true, ignored)

	t.Section("modules.router.", m.Router.Enable)
	t.Row("enable", absent)
	t.String("address", &m.Router.Address, anyIPv4, ignored).Address()
	t.Int32("port", &m.Router.Port, 9443, ignored).Within(1, math.MaxUint16)
	t.Int32("restTimeout", &m.Router.RestTimeout, 60, ignored).AtLeast(1)

	t.Section("modules.iptablesManager.", m.IPTablesManager.Enable)
	t.Bool("enable", &m.IPTablesManager.Enable, true, ignored)
	t.String("mode", &m.IPTablesManager.Mode, "internal", ignored).OneOf("internal external")
}
