#!/bin/sh
# Generates the Go code of the .proto files in this folder.
set -e
cd "$(dirname "$0")/../../.."
protoc -I . --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative \
	pkg/dmi/v1beta1/messages.proto pkg/dmi/v1beta1/services.proto
