"""Replicas from DNS, asked of a real name server in this process."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from proxy.adapters import discovery_dns
from proxy.adapters.discovery_dns import DnsSource
from proxy.core.policy import Discovery, DnsNames, ReplicaPolicy, Scheme
from proxy.ports.replicas import DiscoveryError

TEMPLATE = ReplicaPolicy("", "", kv_blocks=99, api_key_env="KEY")


class NameServer(asyncio.DatagramProtocol):
    """Answers from ``records``, by name and kind. A name that is None is refused; one that is not there is NXDOMAIN."""

    def __init__(self) -> None:
        self.records: dict[str, dict[str, list[str]] | None] = {}
        self.asked: list[str] = []
        self.port = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype)
        self.asked.append(f"{name} {kind}")
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        known = self.records.get(name, {})
        if name not in self.records:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif known is None:
            answer.set_rcode(dns.rcode.REFUSED)
        elif kind in known:
            answer.answer.append(dns.rrset.from_text(question.name, 5, "IN", kind, *known[kind]))
        self._transport.sendto(answer.to_wire(), addr)


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    transport, found = await asyncio.get_running_loop().create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    yield found
    transport.close()


def source(server: NameServer, names: DnsNames, **fields: Any) -> DnsSource:
    asking = dns.asyncresolver.Resolver(configure=False)
    asking.nameservers, asking.port = ["127.0.0.1"], server.port
    return DnsSource(Discovery(dns=names, replica=TEMPLATE, **fields), names, asking)


async def test_every_address_of_a_name_is_a_replica(server: NameServer) -> None:
    server.records["vllm.default.svc"] = {"A": ["10.0.0.6", "10.0.0.5"], "AAAA": ["fd00::7"]}
    telling = source(server, DnsNames("vllm.default.svc", 8000, every_s=0.01)).tell()
    found = await anext(telling)
    assert found is not None
    assert [one.url for one in found] == ["http://10.0.0.5:8000", "http://10.0.0.6:8000", "http://[fd00::7]:8000"]
    assert (found[0].name, found[0].kv_blocks, found[0].api_key_env) == ("10.0.0.5:8000", 99, "KEY")
    server.records["vllm.default.svc"] = {"A": ["10.0.0.5"]}
    again = await anext(telling)
    assert again is not None
    assert [one.url for one in again] == ["http://10.0.0.5:8000"]


async def test_srv_records_tell_hosts_and_ports(server: NameServer) -> None:
    server.records["_http._tcp.vllm"] = {"SRV": ["0 0 8001 b.vllm.", "0 0 8000 a.vllm."]}
    telling = source(server, DnsNames(srv="_http._tcp.vllm"), scheme=Scheme.HTTPS).tell()
    found = await anext(telling)
    assert found is not None
    assert [(one.url, one.name) for one in found] == [
        ("https://a.vllm:8000", "a.vllm:8000"),
        ("https://b.vllm:8001", "b.vllm:8001"),
    ]
    assert server.asked == ["_http._tcp.vllm SRV"]


@pytest.mark.parametrize("known", ["nothing", "no such name", "refused", "silence"])
async def test_a_name_without_records_is_an_outage(server: NameServer, known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery_dns, "ANSWER_S_MAX", 0.2)
    if known == "nothing":
        server.records["vllm"] = {}
    if known == "refused":
        server.records["vllm"] = None
    for names in (DnsNames("vllm", 8000, every_s=0.01), DnsNames(srv="vllm", every_s=0.01)):
        asking = source(server, names)
        if known == "silence":
            asking._asking.port = 9  # nobody answers there
            asking._asking.timeout = 0.05
        with pytest.raises(DiscoveryError, match="vllm"):
            await anext(asking.tell())
