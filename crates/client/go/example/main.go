// Submits a command, explains it, follows its output, and cancels it: one job, whatever becomes of the leader meanwhile.
//
//	MUSTER_ENDPOINTS=replica-1:7401,replica-2:7401,replica-3:7401 job sh -c "echo hello; sleep 600"
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	muster "muster.dev/muster/client"
	v1 "muster.dev/muster/v1beta1"
)

func main() {
	ctx := context.Background()
	client := muster.Must(muster.Connect(strings.Split(os.Getenv("MUSTER_ENDPOINTS"), ",")))
	process := &v1.TaskGroup_Process{Process: &v1.ProcessRuntime{Command: os.Args[1:]}}
	group := &v1.TaskGroup{Workers: 1, Runtime: process, Resources: &v1.Resources{CpuMilli: 100, MemoryBytes: 64 << 20}}
	spec := &v1.JobSpec{Groups: []*v1.TaskGroup{group}}
	job := muster.Must(client.Submit(ctx, &v1.Job{Name: "example", Spec: spec}))
	fmt.Println("submitted", job.ID)
	fmt.Println("explained", muster.Must(job.Explain(ctx)).Reason)
	err := job.Follow(ctx, func(data []byte) bool {
		fmt.Println("printed", strings.TrimSpace(string(data)))
		return false
	})
	muster.Must(job, err)
	muster.Must(job, job.Cancel(ctx))
	status := muster.Must(job.Wait(ctx))
	fmt.Println("ended", strings.ToLower(strings.TrimPrefix(status.Phase.String(), "JOB_PHASE_")))
}
