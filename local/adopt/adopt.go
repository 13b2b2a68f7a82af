// Package adopt takes over the pods of another node agent on this device, KubeEdge's edgecore with a kubelet of
// Kubernetes 1.22 to 1.32 inside, so that no container is restarted. It decides and translates, and touches nothing:
//
//   - Translate turns that agent's configuration into one of this agent, and names all that it leaves out.
//   - Rows turns that agent's store into rows of this one.
//   - Match finds out which of the running containers belong to the pods that are wanted, and what this agent has to
//     remember so that it knows them for its own: an adopted.Record.
//   - State is the journal of a takeover, by which one that was cut off goes on or is undone.
package adopt
