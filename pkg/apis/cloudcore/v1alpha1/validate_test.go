package v1alpha1

import (
	"errors"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatalf("the default is not allowed: %v", err)
	}
	const hub = "modules.cloudHub."
	for path, set := range map[string]func(*CloudCore){
		"commonConfig.tunnelPort": func(c *CloudCore) { c.CommonConfig.TunnelPort = 70000 },
		"commonConfig.monitorServer.bindAddress": func(c *CloudCore) {
			c.CommonConfig.MonitorServer.BindAddress = "127.0.0.1"
		},
		"kubeAPIConfig.master":      func(c *CloudCore) { c.KubeAPIConfig.Master = "192.0.2.1:6443" },
		"kubeAPIConfig.kubeConfig":  func(c *CloudCore) { c.KubeAPIConfig.KubeConfig = "kube/config" },
		"kubeAPIConfig.contentType": func(c *CloudCore) { c.KubeAPIConfig.ContentType = "text/plain" },
		"kubeAPIConfig.qps":         func(c *CloudCore) { c.KubeAPIConfig.QPS = 0 },
		"kubeAPIConfig.burst":       func(c *CloudCore) { c.KubeAPIConfig.Burst = -1 },
		hub + "enable":              func(c *CloudCore) { c.Modules.CloudHub.Enable = false },
		hub + "keepaliveInterval":   func(c *CloudCore) { c.Modules.CloudHub.KeepaliveInterval = 0 },
		hub + "nodeLimit":           func(c *CloudCore) { c.Modules.CloudHub.NodeLimit = 0 },
		hub + "writeTimeout":        func(c *CloudCore) { c.Modules.CloudHub.WriteTimeout = -1 },
		hub + "advertiseAddress":    func(c *CloudCore) { c.Modules.CloudHub.AdvertiseAddress = nil },
		hub + "advertiseAddress[1]": func(c *CloudCore) {
			c.Modules.CloudHub.AdvertiseAddress = []string{"::1", "192.0.2.1:10000"}
		},
		hub + "dnsNames[0]": func(c *CloudCore) {
			c.Modules.CloudHub.DNSNames = []string{"Cloud.example.com"}
		},
		hub + "dnsNames[1]": func(c *CloudCore) {
			c.Modules.CloudHub.DNSNames = []string{"*.example.com", "a.*.example.com"}
		},
		hub + "tlsCertFile":             func(c *CloudCore) { c.Modules.CloudHub.TLSCertFile = "server.crt" },
		hub + "tlsCAKeyFile":            func(c *CloudCore) { c.Modules.CloudHub.TLSCAKeyFile = "" },
		hub + "tlsCAFile":               func(c *CloudCore) { c.Modules.CloudHub.TLSCAFile = "" },
		hub + "tlsPrivateKeyFile":       func(c *CloudCore) { c.Modules.CloudHub.TLSPrivateKeyFile = "" },
		hub + "edgeCertSigningDuration": func(c *CloudCore) { c.Modules.CloudHub.EdgeCertSigningDuration = 0 },
		hub + "tokenRefreshDuration":    func(c *CloudCore) { c.Modules.CloudHub.TokenRefreshDuration = 1e9 },
		hub + "websocket.enable":        func(c *CloudCore) { c.Modules.CloudHub.WebSocket.Enable = false },
		hub + "websocket.address":       func(c *CloudCore) { c.Modules.CloudHub.WebSocket.Address = "all" },
		hub + "websocket.port":          func(c *CloudCore) { c.Modules.CloudHub.WebSocket.Port = 0 },
		hub + "quic.port": func(c *CloudCore) {
			c.Modules.CloudHub.Quic.Enable, c.Modules.CloudHub.Quic.Port = true, 65536
		},
		hub + "quic.maxIncomingStreams": func(c *CloudCore) {
			c.Modules.CloudHub.Quic.Enable, c.Modules.CloudHub.Quic.MaxIncomingStreams = true, 0
		},
		hub + "https.port":    func(c *CloudCore) { c.Modules.CloudHub.HTTPS.Port = 10000 },
		hub + "https.address": func(c *CloudCore) { c.Modules.CloudHub.HTTPS.Address = "" },
		hub + "unixsocket.address": func(c *CloudCore) {
			c.Modules.CloudHub.UnixSocket.Address = "/run/kubeedge.sock"
		},
		"modules.edgeController.enable": func(c *CloudCore) { c.Modules.EdgeController.Enable = false },
		"modules.edgeController.buffer.queryNode": func(c *CloudCore) {
			c.Modules.EdgeController.Buffer.QueryNode = -1
		},
		"modules.edgeController.load.CreatePodWorks": func(c *CloudCore) {
			c.Modules.EdgeController.Load.CreatePodWorks = -1
		},
		"modules.edgeController.nodeUpdateFrequency": func(c *CloudCore) {
			c.Modules.EdgeController.NodeUpdateFrequency = 0
		},
		"modules.deviceController.buffer.deviceEvent": func(c *CloudCore) {
			c.Modules.DeviceController.Buffer.DeviceEvent = -1
		},
		"modules.taskManager.load.taskWorkers": func(c *CloudCore) {
			c.Modules.TaskManager.Enable, c.Modules.TaskManager.Load.TaskWorkers = true, -1
		},
		"modules.cloudStream.streamPort": func(c *CloudCore) {
			c.Modules.CloudStream.Enable, c.Modules.CloudStream.StreamPort = true, 0
		},
		"modules.router.restTimeout": func(c *CloudCore) {
			c.Modules.Router.Enable, c.Modules.Router.RestTimeout = true, 0
		},
		"modules.iptablesManager.mode": func(c *CloudCore) { c.Modules.IPTablesManager.Mode = "none" },
	} {
		t.Run(path, func(t *testing.T) {
			c := Default()
			set(c)
			var problems strict.Problems
			if err := c.Validate(); !errors.As(err, &problems) || len(problems) != 1 {
				t.Fatalf("got %v, want one problem", err)
			}
			if problems[0].Path != path || !strings.Contains(problems[0].Text, " is not allowed; want ") {
				t.Errorf("got %v, want what is allowed at %s", problems[0], path)
			}
		})
	}
}

func TestValidateAllows(t *testing.T) {
	for name, set := range map[string]func(*CloudCore){
		"no monitor":       func(c *CloudCore) { c.CommonConfig.MonitorServer.BindAddress = "" },
		"monitor anywhere": func(c *CloudCore) { c.CommonConfig.MonitorServer.BindAddress = ":9091" },
		"monitor on IPv6":  func(c *CloudCore) { c.CommonConfig.MonitorServer.BindAddress = "[::1]:9091" },
		"a master":         func(c *CloudCore) { c.KubeAPIConfig.Master = "http://127.0.0.1:8080/path" },
		"QUIC alone": func(c *CloudCore) {
			c.Modules.CloudHub.WebSocket = Listener{}
			c.Modules.CloudHub.Quic.Enable = true
		},
		"QUIC at the WebSocket's number": func(c *CloudCore) {
			c.Modules.CloudHub.Quic.Enable, c.Modules.CloudHub.Quic.Port = true, 10000
		},
		"servers off, and wrong": func(c *CloudCore) {
			c.Modules.CloudHub.Quic, c.Modules.CloudHub.UnixSocket, c.Modules.CloudHub.HTTPS = Quic{}, UnixSocket{},
				Listener{}
		},
		"no files": func(c *CloudCore) {
			h := &c.Modules.CloudHub
			h.TLSCAFile, h.TLSCAKeyFile, h.TLSCertFile, h.TLSPrivateKeyFile = "", "", "", ""
		},
		"modules off, and wrong": func(c *CloudCore) {
			m := &c.Modules
			m.DeviceController, m.TaskManager, m.CloudStream, m.Router, m.IPTablesManager = DeviceController{},
				TaskManager{}, CloudStream{}, Router{}, IPTablesManager{}
		},
	} {
		c := Default()
		set(c)
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
