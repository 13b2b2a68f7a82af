package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/edgecore-io/edgecore/edged/imagegc"
	"github.com/edgecore-io/edgecore/edged/repair"
	"github.com/edgecore-io/edgecore/edged/servingcert"
	"github.com/edgecore-io/edgecore/edgehub/join"
	"github.com/edgecore-io/edgecore/metamanager/store/copies"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// leftOversOf are the paths of what agent and pods have left on this device: files and folders that are theirs as a
// whole, then folders that go if they are empty, each with a slash at its end. Nothing in them is mounted. Manifests,
// images and what pods have written to host paths are not among them, and a path that cannot be told in a line is not
// either.
func leftOversOf(cfg *v1alpha2.EdgeCore) []string {
	own, files := &cfg.Modules.Edged, join.FilesOf(cfg)
	root, store := own.RootDirectory, cfg.Database.DataSource
	whole, _ := copies.Files(store) // what cannot be listed is not removed
	whole = append(whole, files.CA, files.Cert, files.Key)
	whole = append(whole, servingcert.Files(root)...)
	whole = append(whole, filepath.Join(root, "image_manager"), imagegc.KeepFile(root), repair.RecordFile(root), repair.ArchiveDir(root), filepath.Join(root, "checkpoints"),
		filepath.Join(root, "plugins", "kubernetes.io"), filepath.Join(root, "pod-resources", "kubelet.sock"),
		filepath.Join(root, "device-plugins", "kubelet.sock"), filepath.Join(root, "device-plugins", "kubelet_internal_checkpoint"))
	if pods, err := os.ReadDir(filepath.Join(root, "pods")); err == nil {
		for _, p := range pods {
			whole = append(whole, filepath.Join(root, "pods", p.Name()))
			// Logs of pods that the runtime had forgotten; a name with a pattern's characters finds nothing, which is
			// no harm.
			logs, _ := filepath.Glob(filepath.Join(own.TailoredKubeletConfig.PodLogsDir, "*_*_"+p.Name()))
			whole = append(whole, logs...)
		}
	}
	list := slices.DeleteFunc(whole, func(path string) bool {
		_, err := os.Lstat(path)
		return err != nil || !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsAny(path, "\n\r")
	})
	slices.Sort(list)
	list = slices.Compact(list)
	for _, dir := range []string{
		filepath.Join(root, "pods"), filepath.Join(root, "plugins"), filepath.Join(root, "plugins_registry"), filepath.Join(root, "device-plugins"),
		filepath.Join(root, "pod-resources"), servingcert.Dir(root), root, own.TailoredKubeletConfig.PodLogsDir, containerLinks, filepath.Dir(files.Cert), filepath.Dir(files.CA), filepath.Dir(store),
	} {
		if filepath.IsAbs(dir) && !strings.ContainsAny(dir, "\n\r") {
			list = append(list, dir+"/")
		}
	}
	return list
}
