// Package v1beta1 is KubeEdge's device mapper interface (DMI), the gRPC protocol between edgecore and mappers over Unix
// sockets (docs/wire.md, Devices). `go generate` writes it from the two .proto files beside it; it needs protoc,
// protoc-gen-go and protoc-gen-go-grpc of the versions that head the generated files.
package v1beta1

//go:generate sh generate.sh
