// Package metricsserver pins the metrics-server that the tests run: the tool of this module's go.mod. It is a module of
// its own, so that its dependencies stay out of edgecore's and of the test cluster's, which would be rebuilt with them.
package metricsserver
