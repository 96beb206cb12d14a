"""WebShop: find what an instruction asks for in a shop of search results and item pages, choose its options, buy it."""

from runner.envs.webshop.environment import WebShop, WebShopOracle

__all__ = ["WebShop", "WebShopOracle"]
