// Command lint has the analyzers that neither go vet nor staticcheck has. Go vet runs it, and keeps its results:
//
//	go build -o bin/lint ./hack/lint && go vet -vettool=bin/lint ./...
package main

import (
	"github.com/polyfloyd/go-errorlint/errorlint"
	"golang.org/x/tools/go/analysis/passes/nilness"
	"golang.org/x/tools/go/analysis/passes/unusedwrite"
	"golang.org/x/tools/go/analysis/unitchecker"
)

func main() {
	wrapped := errorlint.NewAnalyzer()
	// A reader that has come to its end returns io.EOF itself: errors.Is would take a connection that has broken off
	// for the end of what was sent.
	if err := wrapped.Flags.Set("comparison", "false"); err != nil {
		panic(err)
	}
	// bodyclose is not among them: all that it found here are answers to WebSocket handshakes, which have no body.
	unitchecker.Main(wrapped, nilness.Analyzer, unusedwrite.Analyzer)
}
