// Package kubeedge pins KubeEdge 1.12: its programs are the tools of this module's go.mod. It is a module of its own, so that what
// they depend on stays out of edgecore's.
package kubeedge
