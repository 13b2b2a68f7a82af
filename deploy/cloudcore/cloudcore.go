// Package cloudcore holds the manifests of cloudcore, for programs that install it.
//
// Setup is applied first and stays. LoadBalancer, HostNetwork and NodePort are the ways to install cloudcore: overlays
// of the folder base, one of which is applied, or an overlay of the operator's on top of it. None of the three has a
// namespace, a CustomResourceDefinition or an address of the operator's.
package cloudcore

import (
	"embed"
	"io/fs"
)

// The kustomizations, as folders of Files.
const (
	// Setup has the namespace and the CustomResourceDefinitions. To delete it deletes all Devices and the devices' CA.
	Setup = "setup"
	// LoadBalancer puts a Service of that type in front of cloudcore, with its own ports.
	LoadBalancer = "loadbalancer"
	// HostNetwork runs cloudcore in the network of its node, with its own ports.
	HostNetwork = "hostnetwork"
	// NodePort puts a Service of that type in front of cloudcore, with ports from 30000 on.
	NodePort = "nodeport"
	// Before136 has rights that cloudcore needs beside those of the base if Kubernetes is older than 1.36.
	Before136 = "before-1.36"
)

//go:embed */*.yaml
var files embed.FS

// Files returns the manifests, with the paths that they have in deploy/cloudcore.
func Files() fs.FS { return files }
