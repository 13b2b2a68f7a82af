package conformance

import "slices"

// allRows are the rows of every area.
func allRows() []row {
	return slices.Concat(
		basicRows(),
		pullRows(),
		volumeRows(),
		claimRows(),
		csiRows(),
		gcepdRows(),
		deviceRows(),
		admissionRows(),
		probeRows(),
		resizeRows(),
		statusRows(),
		lifecycleRows(),
		sidecarRows(),
		hookRows(),
		restartRows(),
		terminationRows(),
		securityRows(),
		environmentRows(),
		networkRows(),
	)
}
