// Package sbom pins the tool that lists the parts of a program for hack/release, in a module of its own: what the tool
// needs is none of edgecore's business.
package sbom
