package logrotate

import "github.com/edgecore-io/edgecore/edged/observed"

// Written are the logs of the containers that run; path returns the file of a container's log.
func Written(pods []*observed.Pod, path func(*observed.Pod, *observed.Container) string) []Log {
	var logs []Log
	for _, pod := range pods {
		for _, c := range pod.Containers {
			if c.Running() {
				logs = append(logs, Log{
					ID: c.ID, Path: path(pod, c), Name: pod.Namespace + "/" + pod.Name + "/" + c.Name,
				})
			}
		}
	}
	return logs
}
