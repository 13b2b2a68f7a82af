// Package load is a fleet of simulated edges that speak the real protocol over real connections: TLS with a
// certificate of each node's own, registration, inventory, acks, statuses, pings at the heartbeat. They keep of each
// object what an inventory tells of it, and wait before they dial again as edgehub does. They run no pods.
//
// The fleet costs the machine as little as it can, since it shares it with what it measures: a node is one
// goroutine, which reads.
package load
