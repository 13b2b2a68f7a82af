// Package sbom pins the tool that lists the parts of a program for hack/release, in a module of its own: the tool's
// dependencies are not edgecore's.
package sbom
