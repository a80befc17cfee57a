// Package muster submits jobs and follows them, over nothing but what the protocol's own generator makes.
//
// Each call is made again, at whichever replica, until it is answered or its context ends. A call that changes something
// keeps one request id through all of its attempts, so it has one effect, whatever becomes of the leader meanwhile.
package muster

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	v1 "muster.dev/muster/v1beta1"
)

const (
	attemptTimeout = 5 * time.Second
	pause          = 200 * time.Millisecond
	behindMax      = 10 * time.Second // How long a replica may be behind before what it does not know is absent.
)

// Client talks to the replicas of one cluster.
type Client struct {
	Jobs       v1.JobServiceClient
	connection *grpc.ClientConn
}

// Connect names the replicas as HOST:PORT. It does not wait for any of them: the first call does. Without options the
// connection is not encrypted.
func Connect(endpoints []string, options ...grpc.DialOption) (*Client, error) {
	addresses := []resolver.Address{}
	for _, endpoint := range endpoints {
		addresses = append(addresses, resolver.Address{Addr: endpoint})
	}
	replicas, _ := manual.GenerateAndRegisterManualResolver()
	replicas.InitialState(resolver.State{Addresses: addresses})
	if len(options) == 0 {
		options = append(options, grpc.WithInsecure())
	}
	options = append(options, grpc.WithDefaultServiceConfig(`{"loadBalancingPolicy": "round_robin"}`))
	connection, err := grpc.Dial(replicas.Scheme()+":///muster", options...)
	if err != nil {
		return nil, err
	}
	return &Client{v1.NewJobServiceClient(connection), connection}, nil
}

// Close ends the connections.
func (c *Client) Close() error { return c.connection.Close() }

// Must is for short programs: it returns the value, or ends the program with the error.
func Must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

// Job is one job of a cluster.
type Job struct {
	ID     string
	client *Client
}

// Submit returns once the job is durable on a quorum of the replicas.
func (c *Client) Submit(ctx context.Context, job *v1.Job) (*Job, error) {
	request := &v1.SubmitJobRequest{RequestId: requestID(), Job: job}
	var answer *v1.SubmitJobResponse
	err := retry(ctx, func(ctx context.Context) (err error) {
		answer, err = c.Jobs.SubmitJob(ctx, request)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(answer.JobIds) != 1 {
		return nil, fmt.Errorf("it was answered with %d jobs, and one was submitted", len(answer.JobIds))
	}
	return &Job{answer.JobIds[0], c}, nil
}

// Explain says why the job is where it is, of a state that is no older than the call.
func (j *Job) Explain(ctx context.Context) (explanation *v1.Explanation, err error) {
	linearizable := &v1.ReadOptions{State: &v1.ReadOptions_Linearizable{Linearizable: &v1.LinearizableState{}}}
	request := &v1.ExplainJobRequest{JobId: j.ID, Read: linearizable}
	err = retry(ctx, func(ctx context.Context) error {
		answer, err := j.client.Jobs.ExplainJob(ctx, request)
		explanation = answer.GetExplanation()
		return err
	})
	return explanation, err
}

// Follow gives each piece of the job's output to the function, from the start and as it is printed, until the output
// ends or the function returns false. What was given is not given again after a loss of the replica.
func (j *Job) Follow(ctx context.Context, each func(data []byte) bool) error {
	request := &v1.ReadLogsRequest{JobId: j.ID, Follow: true}
	return retryStream(ctx, func(ctx context.Context) error {
		pieces, err := j.client.Jobs.ReadLogs(ctx, request)
		for err == nil {
			var piece *v1.ReadLogsResponse
			if piece, err = pieces.Recv(); err != nil {
				break
			}
			if piece.Position > 0 {
				request.Token, request.FromPosition = piece.Token, piece.Position
			}
			if len(piece.Data) > 0 && !each(piece.Data) {
				return nil
			}
		}
		if err == io.EOF {
			return nil
		}
		return err
	})
}

// Cancel returns once the cancellation is durable; the workers stop after that.
func (j *Job) Cancel(ctx context.Context) error {
	request := &v1.CancelJobRequest{RequestId: requestID(), JobId: j.ID}
	return retry(ctx, func(ctx context.Context) error {
		_, err := j.client.Jobs.CancelJob(ctx, request)
		return err
	})
}

// Wait returns the job's last status, told by a watch.
func (j *Job) Wait(ctx context.Context) (last *v1.JobStatus, err error) {
	request := &v1.WatchJobsRequest{Filter: &v1.JobFilter{JobIds: []string{j.ID}}}
	err = retryStream(ctx, func(ctx context.Context) error {
		events, err := j.client.Jobs.WatchJobs(ctx, request)
		for err == nil {
			var event *v1.WatchJobsResponse
			if event, err = events.Recv(); err != nil {
				break
			}
			request.ResumeToken = event.ResumeToken
			if last = event.GetChanged().GetStatus(); last.GetEndTime() != nil {
				return nil
			}
		}
		return err
	})
	return last, err
}

// retry makes a call until it is answered by something else than a replica that cannot answer now.
func retry(ctx context.Context, call func(context.Context) error) error {
	return retryStream(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
		defer cancel()
		return call(ctx)
	})
}

// retryStream is retry for calls that may last.
func retryStream(ctx context.Context, call func(context.Context) error) error {
	begun := time.Now()
	for {
		attempt, cancel := context.WithCancel(ctx)
		err := call(attempt)
		cancel()
		if err == nil || !passes(err, time.Since(begun)) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %v", ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}

// passes reports whether another replica, or the same one later, may answer.
func passes(err error, tried time.Duration) bool {
	details := status.Convert(err).Proto().GetDetails()
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	case codes.ResourceExhausted: // Too much at a time says when to come back; a limit of the tenant does not.
		for _, detail := range details {
			if strings.HasSuffix(detail.GetTypeUrl(), "/google.rpc.RetryInfo") {
				return true
			}
		}
	case codes.Unknown, codes.Internal: // A connection that broke, or a stream whose replica stopped: no replica says so.
		return len(details) == 0
	case codes.NotFound: // The replica may not have applied the job yet.
		return tried < behindMax
	}
	return false
}

// requestID makes a UUID of version 4.
func requestID() string {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		panic(err) // The system has no random numbers.
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
