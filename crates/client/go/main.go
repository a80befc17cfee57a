// Submits a command, explains it, follows its output, and cancels it once it has printed something: with nothing but
// what the protocol's own generator makes.
//
//	MUSTER_ENDPOINTS=replica-1:7401,replica-2:7401,replica-3:7401 job sh -c "echo hello; sleep 600"
//
// Whatever happens to the leader meanwhile, there is one job, and it is cancelled.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	v1 "muster.dev/muster/v1beta1"
)

// again makes a call, at whichever replica, until it is answered. A request id makes it one effect.
func again(call func(context.Context) error) {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := call(ctx)
		cancel()
		switch status.Code(err) {
		case codes.OK:
			return
		case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
			time.Sleep(200 * time.Millisecond)
		case codes.Unknown, codes.Internal: // A connection that broke, or a stream whose replica stopped.
			time.Sleep(200 * time.Millisecond)
		case codes.NotFound: // The job is there: this replica has not applied it yet.
			time.Sleep(200 * time.Millisecond)
		default:
			log.Fatal(err)
		}
	}
}

func main() {
	addresses := []resolver.Address{}
	for _, endpoint := range strings.Split(os.Getenv("MUSTER_ENDPOINTS"), ",") {
		addresses = append(addresses, resolver.Address{Addr: endpoint})
	}
	replicas, _ := manual.GenerateAndRegisterManualResolver()
	replicas.InitialState(resolver.State{Addresses: addresses})
	connection, err := grpc.Dial(replicas.Scheme()+":///muster", grpc.WithInsecure(),
		grpc.WithDefaultServiceConfig(`{"loadBalancingPolicy": "round_robin"}`))
	if err != nil {
		log.Fatal(err)
	}
	jobs := v1.NewJobServiceClient(connection)

	group := &v1.TaskGroup{
		Workers:   1,
		Runtime:   &v1.TaskGroup_Process{Process: &v1.ProcessRuntime{Command: os.Args[1:]}},
		Resources: &v1.Resources{CpuMilli: 100, MemoryBytes: 64 << 20},
	}
	job := &v1.Job{Name: "example", Spec: &v1.JobSpec{Groups: []*v1.TaskGroup{group}}}
	submit, id := &v1.SubmitJobRequest{RequestId: uuid(), Job: job}, ""
	again(func(ctx context.Context) error {
		answer, err := jobs.SubmitJob(ctx, submit)
		id = strings.Join(answer.GetJobIds(), "")
		return err
	})
	fmt.Println("submitted", id)

	linearizable := &v1.ReadOptions{State: &v1.ReadOptions_Linearizable{Linearizable: &v1.LinearizableState{}}}
	again(func(ctx context.Context) error {
		answer, err := jobs.ExplainJob(ctx, &v1.ExplainJobRequest{JobId: id, Read: linearizable})
		if err == nil {
			fmt.Println("explained", answer.Explanation.Reason)
		}
		return err
	})

	output := &v1.ReadLogsRequest{JobId: id, Follow: true}
	again(func(ctx context.Context) error {
		pieces, err := jobs.ReadLogs(ctx, output)
		for err == nil {
			var piece *v1.ReadLogsResponse
			if piece, err = pieces.Recv(); err == nil && len(piece.Data) > 0 {
				fmt.Println("printed", strings.TrimSpace(string(piece.Data)))
				return nil
			}
		}
		return err
	})

	cancel := &v1.CancelJobRequest{RequestId: uuid(), JobId: id}
	again(func(ctx context.Context) error {
		_, err := jobs.CancelJob(ctx, cancel)
		return err
	})
	watch := &v1.WatchJobsRequest{Filter: &v1.JobFilter{JobIds: []string{id}}}
	again(func(ctx context.Context) error {
		events, err := jobs.WatchJobs(ctx, watch)
		for err == nil {
			var event *v1.WatchJobsResponse
			if event, err = events.Recv(); err == nil {
				watch.ResumeToken = event.ResumeToken
				if status := event.GetChanged().GetStatus(); status.GetEndTime() != nil {
					phase := strings.TrimPrefix(status.Phase.String(), "JOB_PHASE_")
					fmt.Println("ended", strings.ToLower(phase))
					return nil
				}
			}
		}
		return err
	})
}

// uuid makes one of version 4.
func uuid() string {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		log.Fatal(err)
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
