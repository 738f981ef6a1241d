/* SPDX-License-Identifier: GPL-2.0-or-later OR MIT */
/*
 * Tests the functions of rma2.h that the examples do not use, with a real driver, and compares
 * every result.
 *
 * - node1$ calls serve prints "ready NODE VPID NLA" and ends when the client ends.
 * - node0$ calls NODE VPID NLA prints "ok".
 */
#define _GNU_SOURCE
#include <rma2.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096u
#define SIZE (16 * PAGE)
#define PATIENCE 40
#define ROUNDS 100

/* Classes of notification puts. They are requests to the server, and its answer. */
enum { ECHO = 1, ANSWER, BYE };

static RMA2_Port port;

#define CHECK(is, want) (at_line = __LINE__, check(__LINE__, #is, (uint64_t)(is), (uint64_t)(want)))

/* Source line of the current check, which a timeout reports. */
static volatile int at_line;

static void too_late(int signal)
{
	char text[] = "too late at line 0000\n";

	(void)signal;
	for (int i = 20, n = at_line; i > 16; i--, n /= 10)
		text[i] = '0' + n % 10;
	if (write(2, text, sizeof(text) - 1) < 0)
		_exit(3);
	_exit(1);
}

static void check(int line, const char *what, uint64_t is, uint64_t want)
{
	if (is == want)
		return;
	fprintf(stderr, "line %d: %s is %#llx, not %#llx\n", line, what, (unsigned long long)is, (unsigned long long)want);
	exit(1);
}

static uint8_t *memory(size_t size)
{
	uint8_t *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(data == MAP_FAILED, 0);
	return data;
}

/* Waits for the next notification in an event loop. Frees the notification and returns a copy. */
static RMA2_Notification event(void)
{
	struct pollfd fd = { .fd = rma2_get_fd(port), .events = POLLIN };
	RMA2_Notification *found, copy;

	for (;;) {
		RMA2_ERROR rc = rma2_noti_probe(port, &found);

		if (rc == RMA2_NO_NOTI) {
			CHECK(rma2_arm(port), RMA2_SUCCESS);
			rc = rma2_noti_probe(port, &found);
		}
		if (rc == RMA2_SUCCESS)
			break;
		CHECK(rc, RMA2_NO_NOTI);
		CHECK(found == NULL, 1);
		/*
		 * All commands of this program raise interrupts, so that each notification wakes
		 * poll(2).
		 */
		CHECK(poll(&fd, 1, PATIENCE / 2 * 1000), 1);
		CHECK(fd.revents, POLLIN);
	}
	CHECK(rma2_noti_dup(found, &copy), RMA2_SUCCESS);
	CHECK(rma2_noti_free(port, found), RMA2_SUCCESS);
	CHECK(rma2_noti_free(port, found), RMA2_ERR_INV_VALUE);
	CHECK(rma2_noti_get_error(&copy), 0);
	return copy;
}

static void serve(void)
{
	RMA2_Region *region;
	RMA2_Handle back;
	RMA2_NLA nla;
	uint8_t *data = memory(SIZE);

	memset(data, 0x5A, SIZE);
	CHECK(rma2_register(port, data, SIZE, &region), RMA2_SUCCESS);
	CHECK(rma2_get_nla(region, 0, &nla), RMA2_SUCCESS);
	printf("ready %u %u %llu\n", rma2_get_nodeid(port), rma2_get_vpid(port), (unsigned long long)nla);
	fflush(stdout);
	for (;;) {
		RMA2_Notification n = event();

		CHECK(rma2_noti_get_cmd(&n), RMA2_NOTIFICATION_PUT);
		CHECK(rma2_noti_get_mode(&n), RMA2_NOTI_TE | RMA2_NOTI_IRQ);
		if (rma2_noti_get_notiput_class(&n) == BYE)
			break;
		CHECK(rma2_noti_get_notiput_class(&n), ECHO);
		CHECK(rma2_connect(port, rma2_noti_get_remote_nodeid(&n), rma2_noti_get_remote_vpid(&n),
				   RMA2_CONN_DEFAULT | RMA2_CONN_IRQ, &back), RMA2_SUCCESS);
		CHECK(rma2_post_notification(port, back, ANSWER, ~rma2_noti_get_notiput_payload(&n),
					     RMA2_COMPLETER_NOTIFICATION, RMA2_CMD_DEFAULT), RMA2_SUCCESS);
		CHECK(rma2_disconnect(port, back), RMA2_SUCCESS);
	}
	CHECK(rma2_unregister(port, region), RMA2_SUCCESS);
}

/* Node, VPID and NLA of the server, from the client's arguments. */
static RMA2_Nodeid node;
static RMA2_VPID vpid;
static RMA2_NLA remote;
static RMA2_Handle handle;

static void is_from(RMA2_Notification *n, RMA2_Command command, RMA2_Notification_Spec type)
{
	CHECK(rma2_noti_get_cmd(n), command);
	CHECK(rma2_noti_get_notification_type(n), type);
	CHECK(rma2_noti_get_remote_nodeid(n), node);
	CHECK(rma2_noti_get_remote_vpid(n), vpid);
	CHECK(rma2_noti_get_error(n), 0);
}

/* Registers memory with each function that registers memory. */
static void regions(void)
{
	RMA2_Region own, *region;
	RMA2_NLA nla, more;
	size_t n;
	void *va;
	uint8_t *data = memory(4 * PAGE);

	CHECK(rma2_register_nomalloc(port, data + 100, PAGE, &own), RMA2_SUCCESS);
	CHECK(rma2_get_page_count(&own, &n), RMA2_SUCCESS);
	CHECK(n, 2);
	CHECK(rma2_get_size(&own, &n), RMA2_SUCCESS);
	CHECK(n, 2 * PAGE);
	CHECK(rma2_get_nla(&own, 0, &nla), RMA2_SUCCESS);
	CHECK(nla % PAGE, 100);
	CHECK(rma2_get_nla(&own, 8, &more), RMA2_SUCCESS);
	CHECK(more, nla + 8);
	CHECK(rma2_get_va(&own, 8, &va), RMA2_SUCCESS);
	CHECK(va == data + 108, 1);
	CHECK(rma2_get_region_contained(&own, data, 2 * PAGE), 1);
	CHECK(rma2_get_region_overlap(&own, data + 2 * PAGE, 1), 0);
	CHECK(rma2_get_region_equal(&own, data, 2 * PAGE), 1);
	CHECK(rma2_unregister_nofree(port, &own), RMA2_SUCCESS);
	CHECK(rma2_unregister_nofree(port, &own), RMA2_ERR_ATU);

	CHECK(rma2_register_adhoc(port, data + PAGE + 7, &region), RMA2_SUCCESS);
	CHECK(rma2_get_region_equal(region, data + PAGE, PAGE), 1);
	CHECK(rma2_unregister_adhoc(port, region), RMA2_SUCCESS);
	CHECK(rma2_register_cached(port, data, 3 * PAGE, &region), RMA2_SUCCESS);
	CHECK(rma2_get_region_equal(region, data, 3 * PAGE), 1);
	CHECK(rma2_unregister_cached(port, region), RMA2_SUCCESS);
	munmap(data, 4 * PAGE);
	CHECK(rma2_register(port, data, PAGE, &region), RMA2_ERR_NO_MEM);
}

/*
 * Checks that descriptors, immediate puts and gets transfer the correct data and create the correct
 * notifications.
 */
static void commands(uint8_t *data, RMA2_NLA nla)
{
	RMA2_Notification *n;
	RMA2_Descriptor *desc;
	int left;

	CHECK(rma2_desc_alloc(port, &desc), RMA2_SUCCESS);
	CHECK(rma2_desc_query_free(port, &left), RMA2_SUCCESS);
	CHECK(left > 0, 1);
	memset(data, 0x11, PAGE);
	/*
	 * A put of 600 bytes has two fragments. The notification contains the address of the second
	 * one.
	 */
	CHECK(rma2_desc_set_put_get(desc, handle, RMA2_BT_PUT, 600, RMA2_REQUESTER_NOTIFICATION, RMA2_CMD_DEFAULT, nla, remote + 8),
	      RMA2_SUCCESS);
	CHECK(rma2_post_descriptor(port, handle, desc), RMA2_SUCCESS);
	CHECK(rma2_noti_get_block(port, &n), RMA2_SUCCESS);
	is_from(n, RMA2_BT_PUT, RMA2_REQUESTER_NOTIFICATION);
	CHECK(rma2_noti_get_local_address(n), nla + 496);
	CHECK(rma2_noti_get_size(n), 104);
	CHECK(rma2_noti_get_total_size(nla, n), 600);
	CHECK(rma2_noti_free(port, n), RMA2_SUCCESS);

	CHECK(rma2_desc_set_immediate_put(desc, handle, RMA2_REQUESTER_NOTIFICATION, RMA2_CMD_DEFAULT, 3, remote + 16, 0xAABBCC),
	      RMA2_SUCCESS);
	CHECK(rma2_post_descriptor(port, handle, desc), RMA2_SUCCESS);
	CHECK(rma2_noti_match_block(port, RMA2_IMMEDIATE_PUT, node, vpid, RMA2_REQUESTER_NOTIFICATION, RMA2_ANY_NLA, 0, &n),
	      RMA2_SUCCESS);
	is_from(n, RMA2_IMMEDIATE_PUT, RMA2_REQUESTER_NOTIFICATION);
	CHECK(rma2_noti_free(port, n), RMA2_SUCCESS);
	CHECK(rma2_post_immediate_put(port, handle, 8, 0x0123456789ABCDEF, remote + 24, RMA2_NO_NOTIFICATION, RMA2_CMD_DEFAULT),
	      RMA2_SUCCESS);

	/*
	 * The get follows the puts on the same connection, and therefore reads the data that they
	 * wrote.
	 */
	CHECK(rma2_desc_set_put_get(desc, handle, RMA2_QW_GET, 1024, RMA2_COMPLETER_NOTIFICATION, RMA2_CMD_DEFAULT, remote, nla + PAGE),
	      RMA2_SUCCESS);
	sleep(1);
	CHECK(rma2_post_descriptor(port, handle, desc), RMA2_SUCCESS);
	CHECK(rma2_noti_match_block(port, RMA2_GETS, node, vpid, RMA2_COMPLETER_NOTIFICATION, nla + PAGE + 1024, 2, &n), RMA2_SUCCESS);
	is_from(n, RMA2_GET_QW_RSP, RMA2_COMPLETER_NOTIFICATION);
	CHECK(rma2_noti_free(port, n), RMA2_SUCCESS);
	for (uint32_t i = 0; i < 1024; i++) {
		static const uint8_t three[3] = { 0xCC, 0xBB, 0xAA };
		uint8_t want = i < 8 || i >= 608 ? 0x5A : 0x11;

		if (i >= 16 && i < 19)
			want = three[i - 16];
		else if (i >= 24 && i < 32)
			want = 0x0123456789ABCDEF >> (8 * (i - 24));
		CHECK(data[PAGE + i], want);
	}
	/*
	 * Posts a notification put by descriptor and changes its value. The server answers with the
	 * complement.
	 */
	CHECK(rma2_desc_set_noti_put(desc, handle, RMA2_COMPLETER_NOTIFICATION, RMA2_CMD_DEFAULT, BYE, 1), RMA2_SUCCESS);
	CHECK(rma2_desc_set_notification_value(desc, ECHO, 0xF00D), RMA2_SUCCESS);
	CHECK(rma2_post_descriptor(port, handle, desc), RMA2_SUCCESS);
	CHECK(rma2_noti_noti_match_block(port, ANSWER, node, vpid, &n), RMA2_SUCCESS);
	is_from(n, RMA2_NOTIFICATION_PUT, RMA2_COMPLETER_NOTIFICATION);
	CHECK(rma2_noti_get_notiput_class(n), ANSWER);
	CHECK(rma2_noti_get_notiput_payload(n), ~(uint64_t)0xF00D);
	CHECK(rma2_noti_free(port, n), RMA2_SUCCESS);
	CHECK(rma2_desc_free(port, desc), RMA2_SUCCESS);
}

static void lock_is(uint32_t number, int32_t value, int result)
{
	RMA2_Notification *n;

	CHECK(rma2_noti_lock_match(port, number + 1, node, vpid, &n) == RMA2_SUCCESS, 0);
	CHECK(rma2_noti_lock_match_block(port, number, node, vpid, &n), RMA2_SUCCESS);
	is_from(n, RMA2_LOCK_RSP, RMA2_COMPLETER_NOTIFICATION);
	CHECK(rma2_noti_get_lock_number(n), number);
	CHECK((int32_t)rma2_noti_get_lock_value(n), value);
	CHECK(rma2_noti_get_lock_result(n), result);
	CHECK(rma2_noti_free(port, n), RMA2_SUCCESS);
}

static void locks(void)
{
	RMA2_Descriptor *desc;

	for (uint32_t target = 0; target < 2; target++) {
		uint32_t number = 3 + target;

		CHECK(rma2_post_lock(port, handle, target, number, 0, 7, RMA2_COMPLETER_NOTIFICATION, RMA2_CMD_DEFAULT), RMA2_SUCCESS);
		lock_is(number, 7, 1);
		CHECK(rma2_post_lock(port, handle, target, number, 6, 1, RMA2_COMPLETER_NOTIFICATION, RMA2_CMD_DEFAULT), RMA2_SUCCESS);
		lock_is(number, 7, 0);
		CHECK(rma2_desc_alloc(port, &desc), RMA2_SUCCESS);
		CHECK(rma2_desc_set_lock(desc, handle, RMA2_COMPLETER_NOTIFICATION, RMA2_CMD_DEFAULT, target, number, 7, -9),
		      RMA2_SUCCESS);
		CHECK(rma2_post_descriptor(port, handle, desc), RMA2_SUCCESS);
		lock_is(number, -2, 1);
		CHECK(rma2_desc_free(port, desc), RMA2_SUCCESS);
	}
}

/* Sends a value to the server and receives the answer in the event loop. */
static void echo(uint64_t value)
{
	RMA2_Notification n;

	CHECK(rma2_post_notification(port, handle, ECHO, value, RMA2_COMPLETER_NOTIFICATION, RMA2_CMD_DEFAULT), RMA2_SUCCESS);
	n = event();
	is_from(&n, RMA2_NOTIFICATION_PUT, RMA2_COMPLETER_NOTIFICATION);
	CHECK(rma2_noti_get_notiput_payload(&n), ~value);
}

static void classes(void)
{
	uint32_t request, response, now;

	CHECK(rma2_get_tcs(port, handle, &request, &response), RMA2_SUCCESS);
	CHECK(request, 0);
	for (uint32_t tc = 0; tc < 4; tc++) {
		/* The driver has set this class. Only privileged programs may set another class. */
		CHECK(rma2_get_tcs(port, handle, &now, &response), RMA2_SUCCESS);
		response = tc < 2 ? 1 : 3;
		CHECK(rma2_request_tcs(port, handle, tc, response), RMA2_SUCCESS);
		CHECK(rma2_get_tcs(port, handle, &now, &request), RMA2_SUCCESS);
		CHECK(now, tc);
		CHECK(request, response);
		echo(1000 + tc);
	}
	CHECK(rma2_request_tcs(port, handle, 4, 0), RMA2_ERR_INV_VALUE);
	CHECK(rma2_request_tcs(port, handle, 0, 1), RMA2_SUCCESS);
}

static void queue(void)
{
	uint32_t size = rma2_get_queue_size(port), segment = rma2_get_queue_segment_size(port);

	CHECK(size, 256 << 10);
	CHECK(segment, 64 << 10);
	CHECK(rma2_set_queue_size(port, 128 << 10), RMA2_SUCCESS);
	CHECK(rma2_get_queue_size(port), 128 << 10);
	echo(1);
	CHECK(rma2_set_queue_segment_size(port, 8 << 10), RMA2_SUCCESS);
	CHECK(rma2_get_queue_segment_size(port), 8 << 10);
	/* The resized queue must receive notifications. */
	for (uint64_t i = 0; i < 3; i++)
		echo(i);
	/*
	 * Sizes that are not whole pages or segments result in an error, and the queue stays
	 * unchanged.
	 */
	CHECK(rma2_set_queue_size(port, 5000), RMA2_ERR_INV_VALUE);
	CHECK(rma2_set_queue_size(port, 12 << 10), RMA2_ERR_INV_VALUE);
	CHECK(rma2_get_queue_size(port), 128 << 10);
	echo(2);
}

static void refusals(RMA2_Region *region, RMA2_NLA nla)
{
	RMA2_Notification *n;
	RMA2_Handle other;

	CHECK(rma2_connect(port, node, 256, RMA2_CONN_DEFAULT, &other), RMA2_ERR_INV_VALUE);
	CHECK(rma2_connect(port, node, vpid, 32, &other), RMA2_ERR_INV_VALUE);
	CHECK(rma2_connect(NULL, node, vpid, RMA2_CONN_DEFAULT, &other), RMA2_ERR_INV_PORT);
	CHECK(rma2_post_put_bt(port, handle, region, 0, SIZE + 1, remote, 0, 0), RMA2_ERR_INV_VALUE);
	CHECK(rma2_post_put_qw_direct(port, handle, nla, 12, remote, 0, 0), RMA2_ERR_INV_VALUE);
	CHECK(rma2_post_put_bt_direct(port, NULL, nla, 8, remote, 0, 0), RMA2_ERR_INV_HANDLE);
	CHECK(rma2_noti_probe(port, &n), RMA2_NO_NOTI);
	CHECK(rma2_noti_free(port, (RMA2_Notification *)handle), RMA2_ERR_INV_VALUE);
	/*
	 * An invalid remote NLA is reported by the responder, an invalid local one by the
	 * requester.
	 */
	CHECK(rma2_post_get_bt_direct(port, handle, nla, 8, 0x7F00000000, RMA2_COMPLETER_NOTIFICATION, 0), RMA2_SUCCESS);
	CHECK(rma2_noti_get_block(port, &n), RMA2_SUCCESS);
	CHECK(rma2_noti_get_error(n), RMA2_ERROR_RESP);
	CHECK(rma2_noti_get_local_address(n), nla);
	CHECK(rma2_noti_free(port, n), RMA2_SUCCESS);
	CHECK(rma2_post_put_bt_direct(port, handle, 0x7F00000000, 8, remote, RMA2_REQUESTER_NOTIFICATION, 0), RMA2_SUCCESS);
	CHECK(rma2_noti_match_block(port, RMA2_PUTS, node, vpid, RMA2_REQUESTER_NOTIFICATION, RMA2_ANY_NLA, 0, &n), RMA2_SUCCESS);
	CHECK(rma2_noti_get_error(n), RMA2_ERROR_REQ);
	CHECK(rma2_noti_free(port, n), RMA2_SUCCESS);
}

/*
 * Two threads share a port. Each thread posts gets to its own memory and waits for their
 * notifications.
 */
struct worker {
	pthread_t thread;
	uint8_t *data;
	RMA2_NLA nla;
	uint32_t first;
};

static void *work(void *argument)
{
	struct worker *w = argument;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint32_t at = i % 64 * 8;
		uint64_t value = ((uint64_t)w->first << 32) | i, seen;
		RMA2_Notification *n;

		CHECK(rma2_post_immediate_put(port, handle, 8, value, remote + w->first + at, RMA2_NO_NOTIFICATION,
					      RMA2_CMD_DEFAULT), RMA2_SUCCESS);
		/*
		 * The completer executes the lock, because it must follow the put that the same
		 * unit writes.
		 */
		CHECK(rma2_post_lock(port, handle, 0, 8 + w->first / PAGE, -1, 0, RMA2_COMPLETER_NOTIFICATION, 0), RMA2_SUCCESS);
		CHECK(rma2_noti_lock_match_block(port, 8 + w->first / PAGE, node, vpid, &n), RMA2_SUCCESS);
		CHECK(rma2_noti_free(port, n), RMA2_SUCCESS);
		CHECK(rma2_post_get_bt_direct(port, handle, w->nla + at, 8, remote + w->first + at, RMA2_COMPLETER_NOTIFICATION,
					      RMA2_CMD_DEFAULT), RMA2_SUCCESS);
		CHECK(rma2_noti_match_block(port, RMA2_GETS, node, vpid, RMA2_COMPLETER_NOTIFICATION, w->nla + at, 0, &n),
		      RMA2_SUCCESS);
		CHECK(rma2_noti_get_local_address(n), w->nla + at);
		memcpy(&seen, w->data + at, 8);
		CHECK(seen, value);
		CHECK(rma2_noti_free(port, n), RMA2_SUCCESS);
	}
	return NULL;
}

/*
 * Two threads collect notifications of any kind. Together they must receive each notification once.
 */
static uint8_t taken[2 * ROUNDS];

static void *collect(void *argument)
{
	(void)argument;
	for (uint32_t i = 0; i < ROUNDS; i++) {
		RMA2_Notification *n;
		uint64_t value;

		CHECK(rma2_noti_get_block(port, &n), RMA2_SUCCESS);
		value = ~rma2_noti_get_notiput_payload(n);
		CHECK(value < 2 * ROUNDS, 1);
		CHECK(__atomic_fetch_add(&taken[value], 1, __ATOMIC_RELAXED), 0);
		CHECK(rma2_noti_free(port, n), RMA2_SUCCESS);
	}
	return NULL;
}

static void threads(uint8_t *data, RMA2_NLA nla)
{
	struct worker workers[2];
	pthread_t collectors[2];
	RMA2_Notification *n;

	for (uint32_t i = 0; i < 2; i++) {
		uint32_t first = (4 + i) * PAGE;

		workers[i] = (struct worker){ .data = data + first, .nla = nla + first, .first = first };
		CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	for (uint32_t i = 0; i < 2; i++)
		CHECK(pthread_join(workers[i].thread, NULL), 0);
	CHECK(rma2_noti_probe(port, &n), RMA2_NO_NOTI);
	for (uint32_t i = 0; i < 2; i++)
		CHECK(pthread_create(&collectors[i], NULL, collect, NULL), 0);
	for (uint64_t i = 0; i < 2 * ROUNDS; i++)
		CHECK(rma2_post_notification(port, handle, ECHO, i, RMA2_COMPLETER_NOTIFICATION, 0), RMA2_SUCCESS);
	for (uint32_t i = 0; i < 2; i++)
		CHECK(pthread_join(collectors[i], NULL), 0);
	CHECK(rma2_noti_probe(port, &n), RMA2_NO_NOTI);
}

static void client(void)
{
	RMA2_Region *region;
	RMA2_NLA nla;
	uint8_t *data = memory(SIZE);

	CHECK(rma2_connect(port, node, vpid, RMA2_CONN_DEFAULT, &handle), RMA2_SUCCESS);
	CHECK(rma2_handle_get_node(handle), node);
	CHECK(rma2_handle_get_vpid(handle), vpid);
	CHECK(rma2_get_interrupt(port, handle) == RMA2_SUCCESS, 0);
	CHECK(rma2_request_interrupt(port, handle), RMA2_SUCCESS);
	CHECK(rma2_get_interrupt(port, handle), RMA2_SUCCESS);
	regions();
	CHECK(rma2_register(port, data, SIZE, &region), RMA2_SUCCESS);
	CHECK(rma2_get_nla(region, 0, &nla), RMA2_SUCCESS);
	commands(data, nla);
	locks();
	classes();
	queue();
	refusals(region, nla);
	threads(data, nla);
	CHECK(rma2_post_notification(port, handle, BYE, 0, RMA2_COMPLETER_NOTIFICATION, 0), RMA2_SUCCESS);
	rma2_replay_buffer_drain(port);
	CHECK(rma2_disconnect(port, handle), RMA2_SUCCESS);
	CHECK(rma2_unregister(port, region), RMA2_SUCCESS);
	printf("ok\n");
}

int main(int argc, char **argv)
{
	if (argc != 4 && !(argc == 2 && !strcmp(argv[1], "serve"))) {
		fprintf(stderr, "usage: %s serve | NODE VPID NLA\n", argv[0]);
		return 2;
	}
	/* The alarm ends a call that waits for an event which never occurs. */
	signal(SIGALRM, too_late);
	alarm(PATIENCE);
	CHECK(rma2_open(&port), RMA2_SUCCESS);
	if (argc == 2) {
		serve();
	} else {
		node = atoi(argv[1]);
		vpid = atoi(argv[2]);
		remote = strtoull(argv[3], NULL, 10);
		client();
	}
	CHECK(rma2_close(port), RMA2_SUCCESS);
	return 0;
}
