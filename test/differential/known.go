package differential

// Known are the differences between the kubelet and edgecore that are there on purpose. docs/differences.md gives the reason of each.
func Known() []Allowed {
	return nil
}
